"""Gemma 4 in llama.cpp's pair of files and in Ollama's names."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFReader

from ollama_engine.errors import ModelFormatError
from ollama_engine.input import FloatArray
from tests.models.cases import difference
from tests.models.vision import harness
from tests.support.mmproj import Cut, changed, cut, vision_keys

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
MAPS = ("attn_q", "attn_k", "attn_v", "attn_out", "ffn_gate", "ffn_up", "ffn_down")
LIMITS = ("input_min", "input_max", "output_min", "output_max")


def case_named(name: str) -> harness.Case:
    return next(case for case in harness.cases() if case.name == name)


def answer(path: Path, case: harness.Case, **options: Path) -> tuple[int, ...]:
    with harness.engine(path, **options) as engine:
        return engine.generate(case.segments(case.prompts["two"]), harness.greedy(case)).tokens


def logits(path: Path, case: harness.Case) -> FloatArray:
    with harness.engine(path) as engine:
        return np.asarray(engine.logits(case.segments(case.prompts["two"])))


@pytest.mark.parametrize(
    ("name", "kind"), [("gemma4", "gemma4v"), ("gemma4-small", "gemma4v"), ("gemma4-unified", "gemma4uv")]
)
def test_a_pair_answers_as_one_file_does(
    name: str, kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Whether images are bidirectional is no key there: it follows from the embeddings for each layer."""
    case = case_named(name)
    whole = harness.converted(case, tmp_path)
    text, part = cut(whole, tmp_path, CUT, kind=kind)
    # What hears lies in the same file, and is left aside.
    sound = {name: np.ones(8, np.float32) for name in ("a.blk.0.ln1.weight", "mm.a.fc.bias")}
    part = changed(part, tmp_path / "both.gguf", {"clip.audio.projector_type": "gemma4a"}, sound)
    assert answer(text, case, projector=part) == answer(whole, case)
    assert "a part that reads sound, which is not supported" in caplog.text
    assert "not used" not in caplog.text


def test_limits_in_one_tensor_are_those_of_single_ones(tmp_path: Path) -> None:
    """Ollama's first files have them so; 0s stand for a map without limits, as the last one is."""
    case = case_named("gemma4-small")
    whole = harness.converted(case, tmp_path)
    single = {t.name: float(t.data[0]) for t in GGUFReader(whole).tensors if re.search(r"put_m(in|ax)$", t.name)}
    rows = [[single[f"v.blk.{i}.{name}.{limit}"] for limit in LIMITS] for i in range(2) for name in MAPS]
    packed = np.array([*rows, [0.0] * 4], np.float32).ravel()
    gone = dict.fromkeys(single)
    ollamas = changed(whole, tmp_path / "packed.gguf", {}, {**gone, "v.clamp_data": packed})
    none = changed(whole, tmp_path / "none.gguf", {}, gone)
    expected = logits(whole, case)
    np.testing.assert_array_equal(logits(ollamas, case), expected)
    assert difference(logits(none, case), expected) > 0.01, "the limits make no difference"

    short = changed(whole, tmp_path / "short.gguf", {}, {**gone, "v.clamp_data": packed[:-4]})
    with pytest.raises(ModelFormatError, match=r"v\.clamp_data has 56 numbers; expected 60"):
        answer(short, case)
