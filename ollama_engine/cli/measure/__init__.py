"""Commands that measure and examine: bench, perplexity, devices, doctor."""
