"""Owns the element types of checkpoints: their bytes as numpy arrays, and these as float32.

Types that numpy lacks are held as whole numbers of the same width: bf16 as uint16, the 8-bit floats as uint8.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

from ollama_engine.errors import UnsupportedModelError

__all__ = ["FLOATS", "STORAGE", "first_nan", "to_float32"]

STORAGE: dict[str, np.dtype[np.generic]] = {
    name: np.dtype(kind)
    for name, kind in {
        "F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "F8_E4M3": "u1", "F8_E5M2": "u1", "F8_E8M0": "u1",
        "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1", "U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "u1",
        "BOOL": "u1",
    }.items()
}  # fmt: skip
"""numpy types, by the names of the safetensors format."""

FLOATS = ("F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2", "F8_E8M0")


def to_float32(raw: NDArray[np.generic], dtype: str) -> NDArray[np.float32]:
    """The numbers of an array as `STORAGE` holds them; float32 comes back as it is.

    Raises UnsupportedModelError for a type that holds no floats.
    """
    if dtype == "F32":
        return raw.astype(np.float32, copy=False)
    if dtype in ("F16", "F64"):
        with np.errstate(over="ignore"):  # too large a double is an infinity, which is reported elsewhere
            return raw.astype(np.float32)
    if dtype == "BF16":
        wide = raw.astype(np.uint32)
        wide <<= 16
        return wide.view(np.float32)
    if dtype in ("F8_E4M3", "F8_E5M2", "F8_E8M0"):
        return _float8_values(dtype)[raw.view(np.uint8)]
    raise UnsupportedModelError(f"elements of type {dtype} are no weights; expected one of {', '.join(FLOATS)}")


@cache
def _float8_values(dtype: str) -> NDArray[np.float32]:
    """The number that each byte stands for (OCP 8-bit floating point specification, 2023; E8M0: OCP MX, 2023)."""
    codes = np.arange(256)
    if dtype == "F8_E8M0":
        return np.where(codes == 255, np.nan, np.exp2(codes - 127.0)).astype(np.float32)
    mantissa_bits, bias = (3, 7) if dtype == "F8_E4M3" else (2, 15)
    exponent = (codes & 0x7F) >> mantissa_bits
    fraction = (codes & ((1 << mantissa_bits) - 1)) / (1 << mantissa_bits)
    size = np.where(exponent == 0, fraction * 2.0 ** (1 - bias), (1 + fraction) * np.exp2(exponent - float(bias)))
    if dtype == "F8_E4M3":
        size[(codes & 0x7F) == 0x7F] = np.nan  # the only code that is no number; there is no infinity
    else:
        size[exponent == 31] = np.where(fraction[exponent == 31] == 0, np.inf, np.nan)
    return np.where(codes & 0x80, -size, size).astype(np.float32)


def first_nan(raw: NDArray[np.generic], dtype: str) -> int | None:
    """The flat index of the first element that is not a number, or None.

    By whole numbers where that is quicker than by floats: an exponent of ones with any fraction is NaN.
    """
    flat = raw.reshape(-1)
    if dtype in ("F16", "BF16"):
        limit = 0x7C00 if dtype == "F16" else 0x7F80
        bad = (flat.view(np.uint16) & np.uint16(0x7FFF)) > np.uint16(limit)
    elif dtype in ("F32", "F64"):
        bad = flat != flat  # noqa: PLR0124 (NaN differs from itself; isnan is slower)
    elif dtype in FLOATS:
        bad = np.isnan(_float8_values(dtype))[flat.view(np.uint8)]
    else:
        return None
    return int(bad.argmax()) if bad.any() else None
