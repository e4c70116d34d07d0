"""The seeing demo model: drawn pictures, questions about them, a tiny gemma 3 trained on both, and its GGUF."""
