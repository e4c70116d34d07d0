"""Image files to what models take in: reading, resizing, normalizing. Pillow and numpy, no tensors."""
