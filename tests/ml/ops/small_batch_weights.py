"""Random weights of the types that few-row kernels are for, and what products with them see."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

from ollama_engine.ml.ops.small_batch import SMALL_BATCH_QUANTIZED, small_batch_instructions
from ollama_engine.ml.weights.quantize import quantize_rows
from tests.ml.ops.reference import to_bf16
from tests.support.instruction_sets import FLOAT_PRODUCTS, PRODUCTS, Case, RecordProperty, every, runnable

QUANTIZED = SMALL_BATCH_QUANTIZED
FLOATS = ("f16", "bf16")
TYPES = QUANTIZED + FLOATS
QUANTIZED_KERNELS = [(dtype, name) for dtype in QUANTIZED for name in PRODUCTS]
FLOAT_KERNELS = [(dtype, name) for dtype in FLOATS for name in FLOAT_PRODUCTS]
KERNELS = QUANTIZED_KERNELS + FLOAT_KERNELS
"""All that are written, whether they run on this CPU or not: see `kernels`."""
HALVES: dict[str, tuple[int, ...]] = {
    "q4_K": (0, 2),
    "q6_K": (208,),
    "q4_0": (0,),
    "q8_0": (0,),
    "mxfp4": (),
    "q4_1": (0, 2),
    "q5_0": (0,),
    "q5_1": (0, 2),
    "iq4_nl": (0,),
    "q5_K": (0, 2),
    "q3_K": (108,),
    "q2_K": (80, 82),
    "iq4_xs": (0,),
}
"""Where the f16 factors of a block lie."""
RNG = np.random.default_rng(20_260_102)
Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]


def kernels(cases: Iterable[Case]) -> list[Any]:
    """Cases that begin with (type, instruction set) as parameters."""
    return runnable(cases, lambda case: small_batch_instructions(case[0]))


def every_set(dtype: str, record_property: RecordProperty) -> Sequence[str]:
    """Of kernels for a type."""
    return every(FLOAT_PRODUCTS if dtype in FLOATS else PRODUCTS, small_batch_instructions(dtype), record_property)


def raw_weights(dtype: str, m: int, k: int) -> Bytes:
    """m rows of k random weights, as they lie in a file, some blocks being zero and some large."""
    values = RNG.normal(0, 1, (m, k)).astype(np.float32)
    values[:, :32] *= RNG.choice([0, 1e-6, 1, 1e3], (m, 1))
    kind = gguf.GGMLQuantizationType[dtype.upper()]
    block, size = gguf.GGML_QUANT_SIZES[kind]
    raw = np.empty((m, k // block * size), np.uint8)
    quantize_rows(dtype, values, raw.reshape(-1))
    return raw


def raw_blocks(dtype: str, m: int, k: int, fill: int | None, halves: NDArray[np.float16]) -> Bytes:
    """m rows of k weights whose codes and scales have all bytes `fill`, or are random; the f16 factors are drawn from
    `halves`, and MXFP4's exponents lie around 1."""
    block, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[dtype.upper()]]
    blocks = m * k // block
    raw = RNG.integers(0, 256, (blocks, size), np.uint8) if fill is None else np.full((blocks, size), fill, np.uint8)
    if dtype == "mxfp4":
        raw[:, 0] = RNG.integers(115, 130, blocks)
    for at in HALVES[dtype]:
        raw[:, at : at + 2] = RNG.choice(halves, (blocks, 1)).view(np.uint8)
    return raw.reshape(m, -1)


def block_of(dtype: str) -> int:
    """Weights in a block."""
    block: int = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[dtype.upper()]][0]
    return block


def values_of(dtype: str, raw: Bytes) -> NDArray[np.float64]:
    return gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[dtype.upper()]).astype(np.float64)


def whole_weights(raw: Bytes) -> NDArray[np.float64]:
    """F16 weights as whole numbers of 14 bits, times a power of 2 for each 64."""
    values = values_of("f16", raw)
    parts = _in_64s(values)
    largest = np.maximum(np.abs(parts).max(-1, keepdims=True), 2.0**-14)
    step = 2.0 ** (np.floor(np.log2(largest)) - 13)
    return (np.rint(parts / step) * step).reshape(len(values), -1)[:, : values.shape[1]]


def _in_64s(x: NDArray[Any]) -> NDArray[Any]:
    return np.pad(x, ((0, 0), (0, -x.shape[1] % 64))).reshape(len(x), -1, 64)


def whole_activations(x: Floats) -> NDArray[np.float64]:
    """64 activations each as whole numbers, whose sizes add up to 131,000 and are 32,767 at most, times a step. Sizes
    are added up in 16 lanes, and these by halves."""
    parts = _in_64s(x)
    sizes = np.abs(parts).reshape(*parts.shape[:2], 4, 16)
    total = ((sizes[:, :, 0] + sizes[:, :, 1]) + sizes[:, :, 2]) + sizes[:, :, 3]
    while total.shape[-1] > 1:
        total = total[..., : total.shape[-1] // 2] + total[..., total.shape[-1] // 2 :]
    with np.errstate(all="ignore"):
        largest = np.abs(parts).max(-1, keepdims=True)
        by = np.minimum(np.float32(32767) / largest, np.float32(131000) / total)
        codes = np.rint(parts.astype(np.float64) * by) * (np.float32(1) / by).astype(np.float64)
    return np.where(total > 0, codes, 0).reshape(len(x), -1)[:, : x.shape[1]]


def rounded(dtype: str, x: Floats) -> NDArray[np.float64]:
    """Activations as both products see them: 8 bits in blocks of 256, or of 32 with an f16 step, bf16, or all."""
    if dtype in FLOATS:
        return (to_bf16(x) if dtype == "bf16" else x).astype(np.float64)
    block = block_of(dtype)
    parts = x.reshape(len(x), -1, block)
    largest = np.abs(parts).max(-1, keepdims=True)
    with np.errstate(all="ignore"):
        inverse = np.where(largest > 0, np.float32(127) / largest, np.float32(0)).astype(np.float32)
        codes = np.rint(inverse * parts)
        step = 1 / inverse if block == 256 else (largest / np.float32(127)).astype(np.float16).astype(np.float32)
        return np.where(largest > 0, codes * step.astype(np.float64), 0).reshape(x.shape)
