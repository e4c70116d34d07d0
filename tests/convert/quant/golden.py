"""Owns what llama-quantize made of shells and of one small model: where it is kept, and how it is written and read."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from ollama_engine.ml.gguf import GGUFFile
from tests.tiny import write_tiny_llama

GOLDENS = Path(__file__).with_name("goldens.json")
PEER = "LLAMA_QUANTIZE"
"""Environment variable with the path of a llama-quantize from the pinned sources."""

WEIGHTS = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K_M", "Q4_K_M", "Q5_K_M", "Q6_K", "IQ4_NL", "IQ4_XS",
           "BF16", "MXFP4_MOE")  # fmt: skip
"""Presets whose data are compared by hashes."""


def write_small_model(path: Path) -> str:
    """A model in which all K-quants have their blocks, with experts. The same bytes each time."""
    model = write_tiny_llama(path, n_layer=2, n_embd=256, n_ff=256, n_head=8, n_head_kv=2, n_expert=2, dtype="f16",
                             seed=77)  # fmt: skip
    return model.path


def write_small_imatrix(path: Path, model: str, *, skip: str = "attn_q.") -> Path:
    """An importance matrix for it in the older format; tensors with `skip` in their names are not in it."""
    rng = np.random.default_rng(5)
    with GGUFFile(model) as file:
        tensors = [t for t in file.tensors.values() if len(t.shape) > 1 and skip not in t.name]
    data = np.int32(len(tensors)).tobytes()
    for tensor in tensors:
        name, n = tensor.name.encode(), tensor.shape[0] * (tensor.shape[2] if len(tensor.shape) > 2 else 1)
        values = (rng.random(n, np.float32) ** 4 * 12).astype("<f4")
        data += np.int32(len(name)).tobytes() + name + np.int32(3).tobytes() + np.int32(n).tobytes() + values.tobytes()
    text = b"some text"
    path.write_bytes(data + np.int32(7).tobytes() + np.int32(len(text)).tobytes() + text)
    return path


def summary(types: Mapping[str, str]) -> str:
    """Types by tensor name in short: "attn_v q6_K:2 q4_K:3, ...", layer by layer for each kind of matrix."""
    kinds: dict[str, list[str]] = {}
    for name, dtype in types.items():
        if "norm" not in name:
            kinds.setdefault(re.sub(r"^blk\.\d+\.|\.weight$", "", name), []).append(dtype)
    return ", ".join(f"{kind} {_runs(found)}" for kind, found in kinds.items())


def _runs(types: list[str]) -> str:
    return " ".join(f"{dtype}:{len(list(group))}" for dtype, group in groupby(types))


def tensor_hash(path: Path) -> str:
    """Of names, types, shapes and data of all tensors in their order."""
    digest = hashlib.sha256()
    with GGUFFile(path) as file:
        data = path.read_bytes()
        for t in file.tensors.values():
            digest.update(f"{t.name} {t.dtype} {t.shape}\n".encode())
            digest.update(data[t.offset : t.offset + t.nbytes])
    return digest.hexdigest()[:16]


def load() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(GOLDENS.read_text(encoding="utf-8"))
    return found


def peer() -> str | None:
    return os.environ.get(PEER)
