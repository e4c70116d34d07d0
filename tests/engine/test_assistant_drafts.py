"""Drafts of Gemma 4's assistant: answers with it beside those without, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ollama_engine import Engine, Media, SamplingParams, Text
from ollama_engine.cli.models.show import facts
from ollama_engine.errors import ConfigError, UnsupportedModelError
from ollama_engine.ml.gguf.gguf_file import GGUFFile
from ollama_engine.runner.load.draft_parts import can_draft
from tests.models import assistants, families
from tests.models.heads import converted as model_with
from tests.multimodal.pictures import FILES
from tests.support import drafted_answers
from tests.support.tiny import Weights

PARAMS = SamplingParams(temperature=0, max_tokens=60, logit_bias=families.BANNED)
CASES = ("gemma4-assistant", "gemma4-assistant-small")
TEXTS = ("One day, a little cat", "Tom and Ann went to", "The big dog was sad because")
BEHIND = ("post_attention_layernorm.weight", "post_feedforward_layernorm.weight", "post_per_layer_input_norm.weight")
"""The norms behind a block's parts, whose results add to the stream."""


def opened(path: Path, **options: Any) -> Engine:
    defaults: dict[str, Any] = {"num_ctx": 256, "threads": 1, "gpu_layers": 0, "kv_cache_type": "f32", "verify": True}
    return Engine(path, **{**defaults, **options})


def quiet(weights: Weights) -> Weights:
    """The same, where blocks change little of the stream, so that the next token follows from the last one."""
    return {name: values * np.float32(0.002 if name.endswith(BEHIND) else 1) for name, values in weights.items()}


def made_pair(case: assistants.Case, folder: Path) -> tuple[Path, Path]:
    """A model whose next token follows from the last one, and an assistant that knows it: both have one vocabulary."""
    weights = quiet(families.load(case.family).weights_of(case.family, "make_family_goldens"))
    golden = assistants.load(case)
    made = quiet(golden.weights_of(case, "make_assistant_goldens"))
    (table,) = (name for name in weights if name.endswith("embed_tokens.weight"))
    n_own, n_embd = golden.shapes["model.norm.weight"][0], weights[table].shape[1]
    # The last embedding goes through as it is, in the space of the assistant: its first numbers.
    made["pre_projection.weight"] = np.eye(n_own, 2 * n_embd, dtype=np.float32)
    made["model.embed_tokens.weight"] = weights[table][:, :n_own]
    made["model.norm.weight"] = weights[table.replace("embed_tokens", "norm")][:n_own]
    return model_with(case.family, folder, weights), assistants.converted(case, folder, made)


@pytest.fixture(scope="module", params=CASES)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    case = next(case for case in assistants.cases() if case.name == request.param)
    return made_pair(case, tmp_path_factory.mktemp(case.name))


def test_it_guesses_behind_images(tmp_path: Path) -> None:
    case = next(case for case in assistants.cases() if case.name == "gemma4-assistant")
    model = families.converted(families.case("gemma4-vision-bf16"), tmp_path)
    assistant = assistants.converted(case, tmp_path)
    prompt = [Text(TEXTS[0]), Media(FILES["png"]), Text(TEXTS[1])]
    options: dict[str, Any] = {"draft_model": str(assistant), "draft": "model", "num_ctx": 512}
    with opened(model, **options) as engine, drafted_answers.eager(by_model=True):
        params = replace(PARAMS, logprobs=1)
        expected = engine.generate(prompt, params, draft="off", cache=False)
        found = [engine.generate(prompt, params, cache=cache) for cache in (False, True)]
        without = engine.generate(TEXTS[0] + TEXTS[1], PARAMS, draft="off")
    assert expected.tokens != without.tokens, "the image counts"
    assert [(answer.tokens, answer.logprobs) for answer in found] == [(expected.tokens, expected.logprobs)] * 2
    assert min(answer.usage.drafted_tokens for answer in found) > 30


def test_it_takes_no_cache(pair: tuple[Path, Path]) -> None:
    options: dict[str, Any] = {"num_ctx": 256, "threads": 1, "gpu_layers": 0}
    with Engine(pair[0], **options) as engine:
        (without,) = engine.memory.devices
    with Engine(pair[0], draft_model=str(pair[1]), **options) as engine:
        (taken,), layers = engine.memory.devices, engine.memory.layers
    (planned,) = Engine.plan_memory(pair[0], draft_model=str(pair[1]), **options).devices
    assert (taken.cache, planned.cache) == (without.cache, without.cache)
    assert taken.mapped == planned.mapped > without.mapped
    assert layers["draft model"] > 0


def test_it_is_for_one_model_alone(pair: tuple[Path, Path], tmp_path: Path) -> None:
    other = families.converted(families.case("gemma3"), tmp_path)
    assert can_draft(str(pair[1]), pair[0])
    assert not can_draft(str(pair[1]), other)
    with pytest.raises(ConfigError, match="draft_model is no assistant of this model: it drafts for a Gemma 4, not"):
        opened(other, draft_model=str(pair[1]))
    with GGUFFile(pair[1]) as file:
        assert facts(file)["head"] == {"embedding_length": families.SIZES["hidden_size"]}
    with pytest.raises(UnsupportedModelError, match=r"it drafts for a Gemma 4, .* and this file as its draft_model"):
        opened(pair[1])
