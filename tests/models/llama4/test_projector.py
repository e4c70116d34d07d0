"""Llama 4 in two files, as llama.cpp writes them: the same answers as one file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ollama_engine.models.llama4.projector import PROJECTOR
from tests.models.llama4.small import options
from tests.models.vision import harness
from tests.support.mmproj import LLAMA4, Cut, cut

NEWER = replace(LLAMA4, names=((r"v\.blk\.(\d+)\.ffn_norm\.(.*)", r"v.blk.\1.attn_post_norm.\2"), *LLAMA4.names))
"""As newer converters call the norm before the feed-forward part: by a name of Gemma 4's."""


@pytest.mark.parametrize("how", [LLAMA4, NEWER], ids=["ln2", "attn_post_norm"])
def test_a_pair_answers_as_one_file_does(how: Cut, tmp_path: Path) -> None:
    case = next(case for case in harness.cases() if case.name == "llama4")
    golden, prompt = harness.load(case), case.segments(case.prompts["two"])
    text, part = cut(harness.converted(case, tmp_path), tmp_path, how)
    with harness.engine(text, projector=part) as engine:
        assert not engine._loaded.model.unused_weights
        assert list(engine.generate(prompt, harness.greedy(case)).tokens) == golden.answers["two"].tokens


def test_a_factor_of_the_projector_is_the_reciprocal_of_the_ratio() -> None:
    assert options(projector__scale_factor=4).shuffle == options(pixel_shuffle_ratio=0.25).shuffle == 4
    assert options(attention__layer_norm_epsilon=1e-3).norm_eps == options(layer_norm_epsilon=1e-3).norm_eps == 1e-3
    assert {"vision.projector.scale_factor", "vision.attention.layer_norm_epsilon"} <= set(PROJECTOR.keys.values())
