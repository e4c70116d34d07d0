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

import gguf
import numpy as np
from numpy.typing import NDArray

from bench.peer_tools import built
from ollama_engine.ml.gguf.gguf_file import GGUFFile
from tests.support.tiny import write_tiny_llama

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


CALLS = 3
"""How often each matrix of the small importance matrix was used."""


def importance(model: str, skip: str = "attn_q.") -> dict[str, NDArray[np.float32]]:
    """Sums of squares by tensor, [experts, row length]; tensors with `skip` in their names were not measured.

    The same bits on every CPU: products, because numpy's powers are not.
    """
    rng = np.random.default_rng(5)
    with GGUFFile(model) as file:
        tensors = [t for t in file.tensors.values() if len(t.shape) > 1 and skip not in t.name]
    rows = {t.name: (t.shape[2] if len(t.shape) > 2 else 1, t.shape[0]) for t in tensors}
    parts = {name: rng.random(n * m, np.float32).reshape(n, m) for name, (n, m) in rows.items()}
    return {name: np.square(np.square(part)) * np.float32(12) for name, part in parts.items()}


def write_small_imatrix(path: Path, model: str, *, skip: str = "attn_q.") -> Path:
    """An importance matrix for it in the older format."""
    found = importance(model, skip)
    data = np.int32(len(found)).tobytes()
    for tensor, sums in found.items():
        name, n = tensor.encode(), sums.size
        data += np.int32(len(name)).tobytes() + name
        data += np.int32(CALLS).tobytes() + np.int32(n).tobytes() + sums.astype("<f4").tobytes()
    text = b"some text"
    path.write_bytes(data + np.int32(7).tobytes() + np.int32(len(text)).tobytes() + text)
    return path


def write_gguf_imatrix(
    path: Path, sums: Mapping[str, NDArray[Any]], counts: Mapping[str, NDArray[Any]], **keys: Any
) -> Path:
    """An importance matrix as llama-imatrix writes it; `keys` replaces some of its metadata, None removes one."""
    writer = gguf.GGUFWriter(str(path), "imatrix")
    writer.add_type("imatrix")
    known = {"datasets": ["some text", "another"], "chunk_count": 7, "chunk_size": 512}
    for name, value in (known | keys).items():
        if value is not None:
            (writer.add_array if isinstance(value, list) else writer.add_uint32)(f"imatrix.{name}", value)
    for name in sums:
        writer.add_tensor(f"{name}.in_sum2", np.ascontiguousarray(sums[name]))
        if name in counts:
            writer.add_tensor(f"{name}.counts", np.ascontiguousarray(counts[name]))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_small_gguf_imatrix(path: Path, model: str) -> Path:
    """The same numbers as `write_small_imatrix`, as GGUF."""
    sums = importance(model)
    return write_gguf_imatrix(path, sums, {name: np.full((len(s), 1), CALLS, np.float32) for name, s in sums.items()})


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
    """A digest of names, types, shapes and data of all tensors in their order."""
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
    """llama-quantize: the one that PEER names, or that bench/peers.py has built."""
    found = built("build/bin/llama-quantize")
    return os.environ.get(PEER) or (str(found) if found else None)
