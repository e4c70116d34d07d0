"""Llama 3.2 Vision in two files, as Ollama's library had it at first: it answers as one file does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ollama_engine.convert import convert_model
from ollama_engine.errors import ConfigError
from ollama_engine.input import FloatArray
from tests.models.cases import difference
from tests.models.vision import harness
from tests.store.layout import put_model
from tests.support.mmproj import Cut, cut, vision_keys

CASE = next(case for case in harness.cases() if case.name == "mllama")
# Names and keys are those that mllama.cpp of Ollama 0.4 reads.
CUT = Cut(
    "mllama",
    vision_keys(
        "block_count", "global.block_count", "embedding_length", "feed_forward_length", "attention.head_count",
        "attention.layer_norm_epsilon", "image_size", "patch_size", "max_num_tiles", "num_channels",
        "intermediate_layers_indices",
    ),
    (
        (r"v\.(global\.)?blk\.(\d+)\.attn_norm\.(.*)", r"v.\1blk.\2.ln1.\3"),
        (r"v\.(global\.)?blk\.(\d+)\.ffn_norm\.(.*)", r"v.\1blk.\2.ln2.\3"),
        (r"v\.(global\.)?blk\.(\d+)\.attn_output\.weight", r"v.\1blk.\2.attn_out.weight"),
    ),
    text_keys={"image_token_id": None},
    part="mllama",
)  # fmt: skip


def _paired(name: str, values: FloatArray) -> FloatArray:
    """Rows of cross-attention's queries and keys as Ollama's converter has them: pairs, in heads of 16."""
    if not name.endswith(("cross_attn.q_proj.weight", "cross_attn.k_proj.weight")):
        return values
    halves = values.reshape(-1, 2, 8, values.shape[1])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(values.shape)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("mllama-two")
    golden = harness.load(CASE)
    weights = {name: _paired(name, values) for name, values in CASE.weights(golden.shapes).items()}
    convert_model(CASE.write(folder / "source", golden.config, weights), folder / "whole.gguf", "f32")
    return cut(folder / "whole.gguf", folder, CUT, swapped=True)


@pytest.mark.parametrize("stored", [False, True])
def test_two_files_answer_as_one_does(
    files: tuple[Path, Path], stored: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Logits and greedy tokens are those of transformers; by paths, and as a model of Ollama's store."""
    text, part = files
    golden = harness.load(CASE)
    if stored:
        monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path))
        layers = [("model", text.read_bytes()), ("projector", part.read_bytes())]
        put_model(tmp_path, "registry.ollama.ai/library/llama3.2-vision/latest", layers)
        engine = harness.engine("llama3.2-vision")
    else:
        engine = harness.engine(text, projector=part)
    with engine:
        assert engine.info.reads_images
        for name in ("one", "runs"):
            prompt = CASE.segments(CASE.prompts[name])
            rows = engine.logits(prompt)[golden.answers[name].rows]
            assert difference(rows, golden.answers[name].logits) <= harness.TOLERANCE
            assert list(engine.generate(prompt, harness.greedy(CASE)).tokens) == golden.answers[name].tokens


def test_two_text_models_are_no_pair(files: tuple[Path, Path]) -> None:
    with pytest.raises(ConfigError, match="'mllama', and not the vision part"):
        harness.engine(files[0], projector=files[0])
