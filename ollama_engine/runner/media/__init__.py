"""From image files to embeddings: read on the caller's thread, encoded on the engine's, remembered by content."""
