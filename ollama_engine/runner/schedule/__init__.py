"""Who computes what in the next step, in plain values: sequences, inputs, scheduler, batches, text."""
