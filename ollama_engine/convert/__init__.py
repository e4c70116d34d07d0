"""Models as they are published -> GGUF files, and GGUF files -> smaller ones.

    convert_model("path/to/folder", "model.gguf", "bf16")
    quantize_model("model.gguf", "model-q4.gguf", "Q4_K_M")

- `model`: the conversion of a folder from end to end
- `registry`, `architecture`: which architectures there are, and the nouns in which each declares its conversion
- `llama`, ...: one file for each family; `keys`, `rope`, `encoder`, `transforms`, `vision`: what they share
- `plan`, `streaming`, `workers`: which tensors are written, and their bytes, made by several threads
- `metadata`, `pooling`, `vocab`: what the file says about the model, and its tokenizer
- `source`: reading checkpoints; `gguf_writing`, `outtype`: writing
"""

from __future__ import annotations

from ollama_engine.convert.model import convert_model
from ollama_engine.convert.quant.model import quantize_model

__all__ = ["convert_model", "quantize_model"]
