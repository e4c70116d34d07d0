"""Reading what a model was published as: JSON files, and tensors one at a time.

- `folder`: the JSON and text files of a model's folder, `Config` on top
- `elements`: the element types of checkpoints as numpy arrays
- `tensors`: what a tensor of a checkpoint is, whatever file it lies in
- `safetensors`, `torch_files`: the two kinds of files; `scaled`: 8-bit weights with scales
- `checkpoint`: all tensors of a folder by name
"""
