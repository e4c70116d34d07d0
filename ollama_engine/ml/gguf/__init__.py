"""GGUF files: read, checked, mapped. Nothing here computes."""
