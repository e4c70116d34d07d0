"""GGUF files -> smaller ones.

- `presets`: the names of file types and what each makes of a tensor; `layout`: the same for all tensors of a file
- `imatrix`: importance matrices, in both of their formats
- `raw_metadata`: metadata copied byte by byte
- `model`: quantizes a file from end to end
"""
