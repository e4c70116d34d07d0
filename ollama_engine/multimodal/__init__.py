"""Pictures to arrays: what models with vision towers share. Pillow and numpy only, no tensors."""
