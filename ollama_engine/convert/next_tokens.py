"""Blocks that predict tokens further ahead (multi-token prediction): kept in the file behind the others, for drafts.

Named as llama.cpp has them: `blk.N.nextn.*` beside the tensors of a usual block. See `ml/gguf/next_tokens.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

from ollama_engine.convert.architecture import Sizes, TensorMap
from ollama_engine.convert.decoder import BLOCK, LAYER, norm
from ollama_engine.errors import UnsupportedModelError

__all__ = ["HEAD", "NEXT_TOKENS", "N_NEXT", "behind", "counted", "counted_on", "next_token_keys", "placed_behind"]

NEXT_TOKENS = r"\bmtp\."
"""Names of their tensors. A head that is not as declared is left out: nothing computes with it yet."""

N_NEXT = "n_next"
"""The size that says how many such blocks there are."""


def counted(pattern: str) -> Callable[[Collection[str]], Mapping[str, Any]]:
    """{N_NEXT: blocks of a checkpoint}, by its names: the group of `pattern` is a block's number.

    config.json does not say so reliably: transformers writes the number, and leaves the tensors out.
    """
    block = re.compile(pattern)

    def told(names: Collection[str]) -> Mapping[str, Any]:
        return {N_NEXT: len({hit[1] for name in names if (hit := block.search(name))})}

    return told


def placed_behind(tensors: Iterable[TensorMap], rename: Callable[[str], str]) -> tuple[TensorMap, ...]:
    """The declarations of a block for those behind the others; `rename` gives the names in the checkpoint."""
    return tuple(
        replace(tensor, source=rename(tensor.source), layers=N_NEXT, after="n_layer", applies=None)
        for tensor in tensors
    )


def behind(name: str) -> str:
    """The name in checkpoints whose blocks of this kind go on counting the others."""
    return name.replace("{i}", "{behind}")


HEAD = placed_behind(
    (
        TensorMap(BLOCK + "nextn.eh_proj.weight", LAYER + "eh_proj.weight", ("n_embd", "n_embd_twice")),
        norm(BLOCK + "nextn.enorm", LAYER + "enorm"),
        norm(BLOCK + "nextn.hnorm", LAYER + "hnorm"),
        norm(BLOCK + "nextn.shared_head_norm", LAYER + "shared_head.norm"),
        TensorMap(
            BLOCK + "nextn.embed_tokens.weight", LAYER + "embed_tokens.weight", ("n_vocab", "n_embd"), optional=True
        ),
        TensorMap(
            BLOCK + "nextn.shared_head_head.weight", LAYER + "shared_head.head.weight", ("n_vocab", "n_embd"),
            optional=True,
        ),
    ),
    behind,
)  # fmt: skip
"""What such a block has beside the tensors of a usual one, in checkpoints since DeepSeek-V3."""

counted_on = counted(r"\.layers\.(\d+)\.eh_proj\.")
"""How many blocks of these checkpoints are of this kind."""


def next_token_keys(sizes: Sizes) -> Mapping[str, Any]:
    """The keys that say how many there are."""
    if sizes[N_NEXT] > 1:
        raise UnsupportedModelError(f"the checkpoint has {sizes[N_NEXT]} blocks that predict further tokens, not one")
    return {"block_count": sizes["n_layer"] + 1, "nextn_predict_layers": 1} if sizes[N_NEXT] else {}
