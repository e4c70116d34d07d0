"""Owns which element type each tensor of a converted file gets, and the bytes of its numbers in that type."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ollama_engine.convert.source.elements import to_float32
from ollama_engine.ml.gguf.gguf_file import IMAGE_PARTS
from ollama_engine.ml.graph.types import block_of
from ollama_engine.ml.weights.quantize import quantize_rows

__all__ = ["FILE_TYPES", "KEPT", "SAME", "as_bytes", "element_type"]

FILE_TYPES: Final = {"f32": 0, "f16": 1, "bf16": 32, "q8_0": 7}
"""`--outtype` -> `general.file_type`."""

SAME = {"F32": "f32", "F16": "f16", "BF16": "bf16", "MXFP4": "mxfp4", "I64": "i64"}
"""Types of checkpoints that are one of ours bit by bit."""
KEPT = ("MXFP4", "I64")
"""Types of checkpoints that tensors have in any file."""

# As in llama.cpp's converter: what is small, or is used in ways that no kernel reads in fewer bits.
ALWAYS_F32 = (
    r"_norm\.weight$", r"\.ffn_gate_inp(_shexp)?\.weight$", r"position_embd\.weight$", r"^token_types\.weight$",
    r"\.ssm_conv1d", r"\.shortconv\.conv\.weight$", r"(?<!\.weight)$", r"^v\.position_embedding\.weight$",
)  # fmt: skip


def element_type(name: str, shape: Sequence[int], outtype: str, always_f32: Sequence[str] = ()) -> str:
    """The type of a tensor (numpy's shape) in a file of `outtype`.

    Vectors stay float32, and so do kernels of convolutions, which ggml reads as floats only. Rows that do not divide
    into blocks become f16, and so do image parts, instead of blocks: they are small, and run once for an image.
    """
    if not 2 <= len(shape) <= 3 or any(re.search(pattern, name) for pattern in (*ALWAYS_F32, *always_f32)):
        return "f32"
    block = block_of(outtype)[0]
    return "f16" if shape[-1] % block or (block > 1 and name.startswith(IMAGE_PARTS)) else outtype


def as_bytes(raw: NDArray[np.generic], source: str, dtype: str) -> NDArray[np.uint8]:
    """The elements of a checkpoint's type `source` (rows along the last dimension) as bytes of `dtype`.

    Rounds to nearest, ties to even; what is too large for f16 becomes an infinity.
    """
    if SAME.get(source) == dtype:
        return np.ascontiguousarray(raw).reshape(-1).view(np.uint8)
    values = np.ascontiguousarray(to_float32(raw, source))
    if dtype == "f32":
        return values.reshape(-1).view(np.uint8)
    if dtype == "f16":
        with np.errstate(over="ignore"):
            return values.astype(np.float16).reshape(-1).view(np.uint8)
    block, size = block_of(dtype)
    out = np.empty(values.size // block * size, np.uint8)
    quantize_rows(dtype, values.reshape(-1, values.shape[-1]), out)
    return out
