"""Keys of blocks: a block's key depends on its inputs, on all before them, and on what else shapes keys and values.

A prompt is cut into blocks of `BLOCK` inputs; a rest at its end is not stored. So equal keys mean equal keys and
values, and prompts that begin alike have the same first blocks (as in vLLM's and SGLang's caches of prefixes).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import PIL

from ollama_engine.input import Int32Array
from ollama_engine.runner.request.inputs import MediaIdentity
from ollama_engine.runner.schedule.prefix_blocks import BLOCK

__all__ = ["block_keys", "root_key"]


def root_key(*parts: str) -> bytes:
    """The key before any input, from texts that name all that shapes keys and values: model, layout, version."""
    digest = hashlib.sha256()
    for part in parts:
        encoded = part.encode("utf-8", "surrogateescape")
        # With lengths, so that no two lists of parts give the same bytes.
        digest.update(len(encoded).to_bytes(8, "little") + encoded)
    return digest.digest()


def block_keys(
    root: bytes, tokens: Int32Array, media: Sequence[MediaIdentity] = (), namespace: str = ""
) -> list[bytes]:
    """The key of each whole block of inputs, in their order. Those of another namespace have other keys.

    Pixels of an image depend on Pillow, which decodes and resizes it.
    """
    key = root_key(root.hex(), namespace)
    tokens = np.ascontiguousarray(tokens, dtype="<i4")
    keys = []
    for begin in range(0, len(tokens) - BLOCK + 1, BLOCK):
        end = begin + BLOCK
        digest = hashlib.sha256(key)
        digest.update(tokens[begin:end].data)
        for span in media:
            if span.begin < end and span.end > begin:
                first = max(span.begin, begin)
                place = (first - begin, min(span.end, end) - begin, span.offset + first - span.begin, span.hash)
                digest.update(repr((*place, PIL.__version__)).encode())
        key = digest.digest()
        keys.append(key)
    return keys
