"""Declarations of ggml's C interface and of ours beside it; a test compares them with the headers."""
