"""Blocks at the end of a model that predict tokens further ahead (multi-token prediction), for drafts.

llama.cpp's converter counts them in `block_count`, and says how many they are in `nextn_predict_layers`. Ollama's files
of early 2026 have them under their published names, which begin with `mtp.`; those are left unused. Its later ones have
llama.cpp's names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from ollama_engine.errors import ModelFormatError
from ollama_engine.ml.gguf.metadata import Metadata, MetadataValue

__all__ = ["ASSISTANT", "EACH_HEAD", "EAGLE3", "has_head", "n_blocks", "next_token_tensors"]

ASSISTANT = "gemma4-assistant"
"""The architecture of files that have nothing but such blocks, for another model's drafts."""
EAGLE3 = "eagle3"
"""The architecture of EAGLE-3's heads, which have files of their own, too."""

EACH_HEAD = ".nextn.eh_proj.weight"
"""What the name of one tensor of each such block ends with."""

_BLOCK = re.compile(r"blk\.(\d+)\.")


def n_blocks(metadata: Metadata) -> tuple[int, int]:
    """(blocks that compute, those behind them). Raises ModelFormatError."""
    n_all, n_next = metadata.u32("block_count"), metadata.u32("nextn_predict_layers", 0)
    if n_next and n_next >= n_all:
        raise ModelFormatError(f"block_count {n_all} counts the {n_next} blocks of nextn_predict_layers and others")
    return n_all - n_next, n_next


def next_token_tensors(values: Mapping[str, MetadataValue], names: Iterable[str]) -> frozenset[str]:
    """Those of a file's tensors that belong to such blocks, behind others. Raises ModelFormatError."""
    names = tuple(names)
    of_heads = {name for name in names if name.startswith("mtp.")}
    architecture = values.get("general.architecture")
    if architecture == ASSISTANT:
        return frozenset()
    if isinstance(architecture, str) and f"{architecture}.nextn_predict_layers" in values:
        n_used, _ = n_blocks(Metadata(values))
        of_heads |= {name for name in names if (block := _BLOCK.match(name)) and int(block[1]) >= n_used}
    return frozenset(of_heads)


def has_head(values: Mapping[str, MetadataValue], names: Iterable[str]) -> bool:
    """Whether a file has one such block, with llama.cpp's names. Raises ModelFormatError."""
    return sum(name.endswith(EACH_HEAD) for name in next_token_tensors(values, names)) == 1
