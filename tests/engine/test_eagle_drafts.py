"""Drafts of EAGLE-3 heads: answers with one beside those without, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from numpy.typing import NDArray

from ollama_engine import Engine, SamplingParams
from ollama_engine.cli.models.show import facts
from ollama_engine.errors import ConfigError, UnsupportedModelError
from ollama_engine.input import FloatArray
from ollama_engine.ml.gguf.gguf_file import GGUFFile
from ollama_engine.runner.execute.executor import Executor
from ollama_engine.runner.load.draft_parts import can_draft
from ollama_engine.runner.speculative.eagle3 import Eagle3Source
from ollama_engine.runner.speculative.guessing import DraftPart, Guess
from ollama_engine.runner.speculative.next_tokens import MOST_WAITING
from tests.models import eagle_heads, families
from tests.models.heads import LAST, with_head
from tests.models.heads import converted as model_with
from tests.support import drafted_answers
from tests.support.mmproj import changed
from tests.support.suite import slow_except
from tests.support.tiny import Weights

PARAMS = SamplingParams(temperature=0, max_tokens=60, logit_bias=families.BANNED)
HEAD = next(case for case in eagle_heads.cases() if case.name == "eagle3-llama")
TEXTS = ("One day, a little cat", "Tom and Ann went to", "The big dog was sad because")
N_EMBD, HEAD_DIM = families.SIZES["hidden_size"], families.SIZES["head_dim"]
SHARP = 12.0
TARGETS = ("llama", "qwen3", "qwen35")


def opened(path: Path, **options: Any) -> Engine:
    return Engine(path, num_ctx=256, threads=1, gpu_layers=0, kv_cache_type="f32", verify=True, **options)


def agreeing(norm: NDArray[np.float32], output: NDArray[np.float32]) -> Weights:
    """A head that passes on the embedding of the last token: its queries meet their own row's key, in each head.

    It has the model's final norm, and rows of its output.
    """
    weights = dict(eagle_heads.load(HEAD).weights_of(HEAD, "make_eagle_goldens"))
    block = "layers.0.self_attn."
    for name in ("fc", "layers.0.hidden_norm", "layers.0.mlp.down_proj", f"{block}q_proj", f"{block}k_proj"):
        weights[f"{name}.weight"] = np.zeros_like(weights[f"{name}.weight"])
    turning = np.where(np.arange(HEAD_DIM) % (HEAD_DIM // 2) < 4, SHARP, 0).astype(np.float32)  # the quickest pairs
    for name in ("q", "k"):
        rows = len(weights[f"{block}{name}_proj.weight"])
        weights[f"{block}{name}_proj.bias"] = np.tile(turning, rows // HEAD_DIM)
    weights[f"{block}v_proj.weight"] = np.eye(N_EMBD, 2 * N_EMBD, dtype=np.float32)
    passing = np.zeros((N_EMBD, 2, 2, HEAD_DIM), np.float32)  # two heads read one head of values each
    passing[:, :, 0] = np.eye(N_EMBD).reshape(N_EMBD, 2, HEAD_DIM)
    weights[f"{block}o_proj.weight"] = passing.reshape(N_EMBD, -1)
    weights["layers.0.input_layernorm.weight"] = np.ones(N_EMBD, np.float32)
    return {**weights, "norm.weight": norm, "lm_head.weight": output[weights["t2d"]]}


def made_pair(case: families.Family, folder: Path) -> tuple[Path, Path]:
    """A model whose next token follows from the last one, and a head that knows it."""
    weights = families.load(case).weights_of(case, "make_family_goldens")
    calm = {name: values * np.float32(0.002 if name.endswith(LAST) else 1) for name, values in weights.items()}
    model = model_with(case, folder, calm)
    output = calm.get("lm_head.weight", calm.get("model.embed_tokens.weight"))
    norm = calm["model.norm.weight"] + np.float32(1 - case.norms)
    return model, eagle_heads.converted(HEAD, folder, model, agreeing(norm, output))


@pytest.fixture(scope="module", params=slow_except(TARGETS, "llama"))
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return made_pair(families.case(request.param), tmp_path_factory.mktemp(request.param))


@pytest.fixture
def engine(pair: tuple[Path, Path]) -> Iterator[Engine]:
    with opened(pair[0], draft_model=str(pair[1]), draft="model", parallel=4) as engine:
        yield engine


def test_sessions_and_forks_go_on_as_without(engine: Engine) -> None:
    """What they begin with has been computed before, so their drafters see the states of the answer alone."""
    answers, params = [], replace(PARAMS, logprobs=1)
    for draft in ("off", "model"):
        with drafted_answers.eager(by_model=True), engine.session() as session:
            session.append(TEXTS[0])
            found = [session.generate(params, draft=draft)]
            with session.fork() as fork:
                fork.append(TEXTS[1])
                found.append(fork.generate(params, draft=draft))
            found.append(session.generate(params, draft=draft))
        answers.append([(each.tokens, each.logprobs) for each in found])
    assert answers[0] == answers[1]
    assert min(each.usage.drafted_tokens for each in found) > 20


@pytest.mark.parametrize(("name", "n_read"), [("eagle3-llama", MOST_WAITING // 2), ("eagle3-qwen3", 1)])
def test_it_is_given_the_model_s_states_and_then_its_own(tmp_path: Path, name: str, n_read: int) -> None:
    """Those of a prompt's last rows, or of one where it also reads the last block, which computes no others."""
    case = next(case for case in eagle_heads.cases() if case.name == name)
    given: list[tuple[list[int], FloatArray]] = []

    def noted(source: Eagle3Source, parts: Sequence[DraftPart]) -> list[Guess]:
        (part,) = parts
        assert part.hidden is not None
        given.append((list(part.tokens), part.hidden))
        guesses = compute(source, parts)
        states.append(guesses[0].hidden)
        return guesses

    compute, states = Eagle3Source._compute, list[Any]()
    golden, prompt = eagle_heads.load(case), case.family.prompt
    model = families.converted(case.family, tmp_path)
    head = eagle_heads.converted(case, tmp_path, model)
    with (
        opened(model, draft_model=str(head), draft="model") as engine,
        drafted_answers.eager(by_model=True),
        patch.object(Eagle3Source, "_compute", noted),
    ):
        answer = engine.generate(prompt, PARAMS)
    (first, aux), (_, row) = given[:2]
    known = [*prompt, *answer.tokens]
    begin = len(prompt) - n_read
    assert first == known[begin + 1 : begin + 1 + len(first)]
    last = aux[:n_read, :-N_EMBD][-len(golden.aux) :]
    assert np.abs(last - golden.aux[-len(last) :]).max() < case.family.tolerance * golden.aux.std()
    assert not aux[:, -N_EMBD:].any()
    assert not row[:, :-N_EMBD].any()
    assert np.array_equal(row[:, -N_EMBD:], states[0])


def test_only_the_rows_that_it_reads_are_copied(engine: Engine) -> None:
    copied: list[int] = []

    def noting(executor: Executor, begin: int = 0, end: int | None = None) -> FloatArray:
        rows = hidden(executor, begin, end)
        copied.append(len(rows))
        return rows

    hidden, prompt = Executor.hidden, list(range(20, 20 + 2 * MOST_WAITING))
    plain = engine.generate(prompt, PARAMS, draft="off", cache=False)
    with patch.object(Executor, "hidden", noting), drafted_answers.eager(by_model=True):
        assert engine.generate(prompt, PARAMS).tokens == plain.tokens
    assert copied[0] == MOST_WAITING


def test_tokens_that_are_never_drawn_are_guessed_as_others(engine: Engine) -> None:
    """A model's output may have more rows than its vocabulary has tokens."""
    source: Any = engine._submission._draft_model
    made = Eagle3Source(
        source._executor, source._cache, 1, 256, 3, tokens=np.array([0, 2, 3, 7], np.int32), n_aux=1, n_own=1
    )
    assert [made._best(np.eye(4, dtype=np.float32)[i])[0] for i in range(4)] == [0, 2, 0, 0]


def test_its_memory_is_in_the_report_and_planned(pair: tuple[Path, Path]) -> None:
    options: dict[str, Any] = {"num_ctx": 256, "threads": 1, "gpu_layers": 0, "parallel": 2}
    with Engine(pair[0], **options) as engine:
        (without,) = engine.memory.devices
    with Engine(pair[0], draft_model=str(pair[1]), **options) as engine:
        (taken,), layers = engine.memory.devices, engine.memory.layers
    (planned,) = Engine.plan_memory(pair[0], draft_model=str(pair[1]), **options).devices
    assert taken.cache == planned.cache > without.cache
    assert taken.mapped == planned.mapped > without.mapped
    assert layers["draft model"] > 0


def test_the_cache_of_several_blocks_is_planned(tmp_path: Path) -> None:
    case = next(case for case in eagle_heads.cases() if case.name == "eagle3-two-blocks")
    model = families.converted(case.family, tmp_path)
    head = str(eagle_heads.converted(case, tmp_path, model))
    options: dict[str, Any] = {"num_ctx": 256, "gpu_layers": 0, "threads": 1, "draft_model": head, "draft": "model"}
    with Engine(model, **options) as engine, drafted_answers.eager(by_model=True):
        (taken,) = engine.memory.devices
        plain = engine.generate(case.family.prompt, PARAMS, draft="off")
        found = engine.generate(case.family.prompt, PARAMS)
    (planned,) = Engine.plan_memory(model, **options).devices
    assert taken.cache == planned.cache
    assert found.tokens == plain.tokens
    assert found.usage.drafted_tokens > 0


def test_tensors_that_it_does_not_read_are_said(
    pair: tuple[Path, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    head = changed(pair[1], tmp_path / "more.gguf", {}, {"stray.weight": np.zeros(32, np.float32)})
    opened(pair[0], draft_model=str(head), draft="model").close()
    assert "architecture eagle3 does not use 1 of the file's tensors: stray.weight" in caplog.text


def test_it_is_for_one_model_alone(pair: tuple[Path, Path], tmp_path: Path) -> None:
    wide, streams = (families.converted(families.case(name), tmp_path) for name in ("granite", "gemma3n"))
    assert can_draft(str(pair[1]), pair[0])
    assert not can_draft(str(pair[1]), wide)
    with pytest.raises(ConfigError, match="it drafts for a model with 64 numbers a token, not for 128"):
        opened(wide, draft_model=str(pair[1]))
    with pytest.raises(ConfigError, match="it reads states of a model's blocks, which gemma3n does not give"):
        opened(streams, draft_model=str(pair[1]))
    with pytest.raises(UnsupportedModelError, match=r"it is an EAGLE-3 head, .* and this file as its draft_model"):
        opened(pair[1])
    with GGUFFile(pair[1]) as file:
        assert facts(file)["head"] == {"embedding_length": N_EMBD, "blocks": [1, 2, 2]}


def test_the_model_s_own_head_reads_other_states(tmp_path: Path) -> None:
    case = families.case("glm4moe")
    model = model_with(case, tmp_path, with_head(case))
    head = eagle_heads.converted(HEAD, tmp_path, model)
    with pytest.raises(ConfigError, match="draft is mtp, and draft_model is an EAGLE-3 head, which reads other states"):
        opened(model, draft_model=str(head), draft="mtp")
    with opened(model, draft_model=str(head), draft="model") as engine, drafted_answers.eager(by_model=True):
        assert engine.generate(TEXTS[0], PARAMS).usage.drafted_tokens > 30
