"""From a path and options to a model that computes batches, with all memory taken."""
