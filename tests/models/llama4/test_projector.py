"""Names of llama.cpp's files: each tensor of its converter becomes one that the model reads, and all are there."""

from __future__ import annotations

import re
from pathlib import Path

import gguf
import pytest

from ollama_engine.models.llama4.projector import KEYS, NAMES
from tests.models.llama4.small import options
from tests.models.vision import harness

BLOCK = ("ln1", "ln2", "ffn_up", "ffn_down", "attn_q", "attn_k", "attn_v", "attn_out")


def theirs(second_norm: str) -> list[str]:
    """What llama.cpp's converter writes of three layers."""
    pairs = ["v.pre_ln", "v.post_ln", *(f"v.blk.{i}.{name}" for i in range(3) for name in BLOCK)]
    both = [f"{name}.{kind}" for name in pairs for kind in ("weight", "bias")]
    single = ["v.patch_embd.weight", "v.class_embd", "v.position_embd.weight", "mm.model.mlp.1.weight",
              "mm.model.mlp.2.weight", "mm.model.fc.weight"]  # fmt: skip
    return [name.replace(".ln2.", f".{second_norm}.") for name in both] + single


def known(name: str) -> str:
    found = [re.sub(pattern, new, name) for pattern, new in NAMES if re.fullmatch(pattern, name)]
    return found[0] if found else name


@pytest.mark.parametrize("second_norm", ["ln2", "attn_post_norm"])
def test_every_tensor_of_a_file_has_its_name(second_norm: str, tmp_path: Path) -> None:
    """`attn_post_norm` is what newer converters call the norm before the feed-forward part."""
    case = next(case for case in harness.cases() if case.name == "llama4")
    ours = {t.name for t in gguf.GGUFReader(harness.converted(case, tmp_path)).tensors}
    assert sorted(map(known, theirs(second_norm))) == sorted(n for n in ours if n.startswith(("v.", "mm.")))


def test_a_factor_of_the_projector_is_the_reciprocal_of_the_ratio() -> None:
    assert options(projector__scale_factor=4).shuffle == options(pixel_shuffle_ratio=0.25).shuffle == 4
    assert options(attention__layer_norm_epsilon=1e-3).norm_eps == options(layer_norm_epsilon=1e-3).norm_eps == 1e-3
    assert {"vision.projector.scale_factor", "vision.attention.layer_norm_epsilon"} <= set(KEYS.values())
