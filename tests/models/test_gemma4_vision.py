"""Gemma 4 in llama.cpp's pair of files, and how pictures get their size."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.models.vision import harness
from tests.support.mmproj import Cut, cut, vision_keys

pytest.importorskip("PIL", reason="Pillow is not installed")

CUT = Cut(
    "gemma4v",
    vision_keys(
        "block_count", "embedding_length", "feed_forward_length", "attention.head_count",
        "attention.layer_norm_epsilon", "patch_size", "projector.scale_factor",
        "max_soft_tokens",  # which is ours: published models have 280
    ),
    names=(),
    text_keys=dict.fromkeys(("image_start_token_id", "image_end_token_id")),
)  # fmt: skip


@pytest.mark.parametrize("name", ["gemma4", "gemma4-small"])
def test_a_pair_answers_as_one_file_does(name: str, tmp_path: Path) -> None:
    """Whether images are bidirectional is no key there: it follows from the embeddings for each layer."""
    case = next(case for case in harness.cases() if case.name == name)
    whole = harness.converted(case, tmp_path)
    text, part = cut(whole, tmp_path, CUT)
    segments = case.segments(case.prompts["two"])
    with harness.engine(whole) as one, harness.engine(text, projector=part) as two:
        expected = one.generate(segments, harness.greedy(case))
        assert two.generate(segments, harness.greedy(case)).tokens == expected.tokens
