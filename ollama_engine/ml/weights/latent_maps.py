"""Maps of latent attention that are made while weights are read: attn_k_b and attn_v_b of one matrix, attn_kv_b.

Files from before llama.cpp computed latent attention as such have that one, for the keys and values of all heads.

A head's rows make its keys, then its values, of a latent vector. Queries are mapped the other way: rows that make keys
are stored turned, as float32, since blocks of quantized numbers lie along the rows. Rows that make values stay as they
are.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ollama_engine.ml.gguf.gguf_file import TensorInfo
from ollama_engine.ml.gguf.metadata import MetadataValue
from ollama_engine.ml.graph.types import block_of
from ollama_engine.ml.weights.quantize import dequantize_rows

__all__ = ["LatentMap", "latent_maps"]

_BOTH = re.compile(r"(blk\.\d+\.attn_)kv_b\.weight")


@dataclass(frozen=True)
class LatentMap:
    """A tensor to make: the rows [begin, end) of each head in `source`, perhaps `turned`."""

    info: TensorInfo
    source: TensorInfo
    n_head: int
    begin: int
    end: int
    turned: bool

    def made(self, data: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """The tensor's bytes, of those of its source."""
        rows = data.reshape(self.n_head, -1, self.source.nbytes // self.source.shape[1])[:, self.begin : self.end]
        kept = np.ascontiguousarray(rows).reshape(-1)
        if not self.turned:
            return kept
        n_latent = self.source.shape[0]
        if self.source.dtype == "f32":
            numbers = kept.view(np.float32)
        else:
            numbers = np.empty(self.n_head * (self.end - self.begin) * n_latent, dtype=np.float32)
            dequantize_rows(self.source.dtype, kept, numbers)
        turned = numbers.reshape(self.n_head, self.end - self.begin, n_latent).swapaxes(1, 2)
        return np.ascontiguousarray(turned).reshape(-1).view(np.uint8)


def latent_maps(values: Mapping[str, MetadataValue], infos: Mapping[str, TensorInfo]) -> dict[str, LatentMap]:
    """What to make of a file's tensors, by name; their sources are not needed then."""
    n_head = values.get(f"{values.get('general.architecture')}.attention.head_count")
    maps: dict[str, LatentMap] = {}
    for name, source in infos.items():
        hit = _BOTH.fullmatch(name)
        if hit and isinstance(n_head, int) and n_head > 0:
            maps |= {made.info.name: made for made in _split(hit[1], source, n_head, infos)}
    return maps


def _split(prefix: str, source: TensorInfo, n_head: int, infos: Mapping[str, TensorInfo]) -> list[LatentMap]:
    """Both tensors; none where the shapes do not fit, which the model says when it misses them."""
    output = infos.get(f"{prefix}output.weight") or infos.get(f"{prefix}out.weight")
    if output is None or len(source.shape) != 2 or f"{prefix}k_b.weight" in infos:
        return []
    (n_latent, n_rows), n_values = source.shape, output.shape[0]
    each, value_dim = n_rows // n_head, n_values // n_head
    n_own = each - value_dim
    if n_rows % n_head or n_values % n_head or n_own < 1 or value_dim < 1:
        return []
    block, nbytes = block_of(source.dtype)
    value_bytes = n_latent * value_dim * n_head // block * nbytes
    keys = source._replace(
        name=f"{prefix}k_b.weight", dtype="f32", shape=(n_own, n_latent, n_head), nbytes=4 * n_own * n_latent * n_head
    )
    values = source._replace(name=f"{prefix}v_b.weight", shape=(n_latent, value_dim, n_head), nbytes=value_bytes)
    return [
        LatentMap(keys, source, n_head, 0, n_own, turned=True),
        LatentMap(values, source, n_head, n_own, each, turned=False),
    ]
