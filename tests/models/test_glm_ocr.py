"""GLM-OCR beside what all families are compared by: files of llama.cpp and Ollama, files that cannot be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFReader

from ollama_engine.errors import ModelFormatError
from tests.models.vision import harness
from tests.models.vision.glm_ocr import CASES
from tests.models.vision.harness import greedy
from tests.support.mmproj import Cut, changed, cut, vision_keys

pytest.importorskip("PIL", reason="Pillow is not installed")

(CASE,) = CASES
TOKENS = ("image_token_id", "image_start_token_id", "image_end_token_id")
CUT = Cut(
    "glm4v",
    vision_keys(
        "block_count", "embedding_length", "feed_forward_length", "attention.head_count",
        "attention.layer_norm_epsilon", "patch_size", "image_mean", "image_std", "spatial_merge_size",
    ),
    ((r"v\.patch_embd_0\.weight", r"v.patch_embd.weight"), (r"v\.patch_embd_1\.weight", r"v.patch_embd.weight.1")),
    text_keys=dict.fromkeys(TOKENS),
)  # fmt: skip


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return harness.converted(CASE, tmp_path_factory.mktemp("glm"))


def answers(model: Path, **options: Any) -> None:
    golden = harness.load(CASE)
    with harness.engine(model, **options) as engine:
        assert not engine._loaded.model.unused_weights
        for name, prompt in CASE.prompts.items():
            answer = engine.generate(CASE.segments(prompt), greedy(CASE))
            assert list(answer.tokens) == golden.answers[name].tokens


def test_a_text_model_and_an_mmproj_file_answer_as_one_file(path: Path, tmp_path: Path) -> None:
    """llama.cpp knows the limits of pixels by heart; the tiny model has others."""
    text, part = cut(path, tmp_path, CUT)
    limits = {f"glm4.vision.{edge}": value for edge, value in (("min_pixels", 512), ("max_pixels", 6144))}
    answers(changed(text, tmp_path / "text.gguf", limits), projector=part)


def test_a_file_of_ollama_answers_as_ours(path: Path, tmp_path: Path) -> None:
    """Its architecture is glmocr; gate and up projections are two tensors, and several names differ."""
    reader = GGUFReader(path)
    theirs = {
        "vision.attention.layer_norm_epsilon": "vision.attention.layer_norm_rms_epsilon",
        "vision.feed_forward_length": "vision.intermediate_size",
    }
    keys: dict[str, Any] = {"general.architecture": "glmocr"}
    for name, stored in reader.fields.items():
        if name.startswith("glm4."):
            own = name.removeprefix("glm4.")
            keys |= {name: None, f"glmocr.{theirs.get(own, own)}": stored.contents()}
    keys["glmocr.rope.mrope_section"] = keys.pop("glmocr.rope.dimension_sections")[:3]
    tensors: dict[str, Any] = {}
    for tensor in reader.tensors:
        parts = tensor.name.split(".")
        if parts[0] != "blk":
            continue
        named = {"attn_output": "attn_out", "post_attention_norm": "post_attn_norm", "post_ffw_norm": "post_ffn_norm"}
        if parts[2] in named:
            tensors |= {tensor.name: None, f"blk.{parts[1]}.{named[parts[2]]}.weight": np.array(tensor.data)}
        if parts[2] == "ffn_up":
            gate, up = np.split(np.array(tensor.data), 2)
            tensors |= {tensor.name: up, f"blk.{parts[1]}.ffn_gate.weight": gate}
    answers(changed(path, tmp_path / "theirs.gguf", keys, tensors))


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"rope.dimension_sections": [4, 5, 6, 0]}, r"\[4, 5, 6, 0\]; expected 3 or 4 numbers .* add up to 16"),
        ({"vision.max_pixels": 64}, r"vision.max_pixels 64; .* at least a block of 128 pixels"),
        ({"vision.spatial_merge_size": 0}, r"spatial_merge_size is 0, expected at least 1"),
        ({"vision.spatial_merge_size": 4}, r"mm\.patch_merger\.weight has shape \[2, 2, 48, 64\]"),
        ({"image_start_token_id": 324}, r"image_start_token_id is 324, expected an id below 324"),
    ],
)
def test_files_that_say_what_cannot_be(keys: dict[str, Any], message: str, path: Path, tmp_path: Path) -> None:
    wrong = changed(path, tmp_path / "wrong.gguf", {f"glm4.{key}": value for key, value in keys.items()})
    with pytest.raises(ModelFormatError, match=message):
        harness.engine(wrong)
