"""The demo model: a story generator, a small llama trained on its stories, and the export to GGUF."""
