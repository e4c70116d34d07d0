"""The weights of a model on a backend, and which kernel multiplies with each."""
