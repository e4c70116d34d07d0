"""Intake: what becomes of a prompt before the engine sees it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ollama_engine.errors import ConfigError, ContextOverflowError, TokenizerError
from ollama_engine.runner.core.input_processor import prompt_inputs
from ollama_engine.runner.core.new_requests import new_generation, new_scoring
from ollama_engine.runner.load.loading import Loaded
from ollama_engine.runner.request.channel import RequestChannel
from ollama_engine.runner.request.options import RequestOptions
from ollama_engine.runner.schedule.row_readers import AllRows
from ollama_engine.sample import SamplingParams
from tests.models.variants import loaded
from tests.runner.fakes import Events
from tests.support.tiny import write_tiny_llama


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loaded]:
    folder: Path = tmp_path_factory.mktemp("tiny")
    with loaded(write_tiny_llama(folder / "tiny.gguf", n_layer=1).path, num_ctx=32, parallel=1) as made:
        yield made


def made(parts: Loaded, prompt: list[int], **options: Any) -> Any:
    return new_generation(
        parts, prompt_inputs(parts, prompt), SamplingParams(), RequestOptions(**options), RequestChannel(Events())
    )


def test_a_prompt_that_fits_is_taken_whole(parts: Loaded) -> None:
    for overflow in ("error", "truncate", "shift"):
        generation = made(parts, list(range(31)), on_overflow=overflow)
        assert (generation.inputs.tokens.tolist(), generation.n_prompt, generation.dropped) == (list(range(31)), 31, 0)
        assert generation.eog_ids == {318, 319}


@pytest.mark.parametrize(
    ("overflow", "num_keep", "dropped"),
    [
        ("shift", 0, 18),
        ("shift", 4, 18),
        ("shift", 31, 18),
        ("truncate", 0, 26),
        ("truncate", 4, 26),
        ("truncate", 30, 19),
    ],
)
def test_a_longer_one_keeps_its_beginning_and_its_newest_tokens(
    parts: Loaded, overflow: str, num_keep: int, dropped: int
) -> None:
    """Where it is truncated, a quarter of the context is left to the answer, or less where more is to be kept."""
    prompt = list(range(50))
    generation = made(parts, prompt, on_overflow=overflow, num_keep=num_keep)
    assert generation.inputs.tokens.tolist() == prompt[:num_keep] + prompt[dropped + num_keep :]
    assert (generation.n_prompt, generation.dropped, generation.keep) == (50, dropped, num_keep)


@pytest.mark.parametrize(
    ("overflow", "max_tokens", "dropped"),
    [
        ("error", 0, 0),
        ("truncate", 0, 0),
        ("truncate", 1, 1),
        ("truncate", 5, 5),
        ("truncate", None, 8),
        ("shift", 5, 0),
    ],
)
def test_one_as_long_as_the_context(parts: Loaded, overflow: str, max_tokens: int | None, dropped: int) -> None:
    """It leaves no place for an answer: where one is wanted, the prompt is refused, cut, or shifted later."""
    params = SamplingParams(max_tokens=max_tokens)
    generation = new_generation(
        parts, prompt_inputs(parts, list(range(32))), params, RequestOptions(overflow), RequestChannel(Events())
    )  # type: ignore[arg-type]
    assert (generation.dropped, generation.inputs.tokens.tolist()) == (dropped, list(range(dropped, 32)))


def test_num_keep_beyond_the_prompt_keeps_the_prompt(parts: Loaded) -> None:
    assert made(parts, [1, 2, 3], on_overflow="shift", num_keep=9).keep == 3


def test_penalties_see_what_is_left_of_the_prompt(parts: Loaded) -> None:
    """And not what was dropped: the answer is the one that the shorter prompt gets."""
    row = np.zeros(320, dtype=np.float32)
    row[[5, 6]] = 1.0
    params = SamplingParams(temperature=0, presence_penalty=10, repeat_last_n=-1)
    prompt = [5] * 10 + [7] * 23
    generation = new_generation(
        parts, prompt_inputs(parts, prompt), params, RequestOptions("truncate"), RequestChannel(Events())
    )
    assert generation.inputs.tokens.tolist() == [5] + [7] * 23
    assert generation.sampler.sample(row) == 6
    other = new_generation(
        parts, prompt_inputs(parts, [6, *[7] * 23]), params, RequestOptions("truncate"), RequestChannel(Events())
    )
    assert other.sampler.sample(row) == 5


@pytest.mark.parametrize(
    ("prompt", "options", "error", "told"),
    [
        ([], {}, ConfigError, "prompt is empty"),
        ([320], {}, TokenizerError, r"token 320 .* \(0 to 319\)"),
        ([-1], {}, TokenizerError, "token -1"),
        ([1] * 33, {}, ContextOverflowError, "33 tokens, but num_ctx is 32; shorten it"),
        (
            [1] * 32,
            {},
            ContextOverflowError,
            "32 tokens, but num_ctx is 32: no place is left for an answer; shorten it",
        ),
        ([1], {"on_overflow": "shift", "num_keep": 32}, ContextOverflowError, "num_keep is 0 to 31"),
        ([1], {"on_overflow": "truncate", "num_keep": 99}, ContextOverflowError, "got 99"),
        ([1] * 32, {"on_overflow": "truncate", "num_keep": 31}, ContextOverflowError, "num_keep is 0 to 30"),
    ],
)
def test_what_is_refused(parts: Loaded, prompt: list[int], options: Any, error: type[Exception], told: str) -> None:
    with pytest.raises(error, match=told):
        made(parts, prompt, **options)


def test_scoring_has_a_row_for_each_token(parts: Loaded) -> None:
    scoring = new_scoring(parts, prompt_inputs(parts, [1, 2, 3]), RequestChannel(Events()))
    assert isinstance(scoring.row_reader, AllRows)
    assert scoring.row_reader.rows.shape == (3, 320)
    for prompt, error in (([], ConfigError), ([999], TokenizerError), ([1] * 33, ContextOverflowError)):
        with pytest.raises(error):
            new_scoring(parts, prompt_inputs(parts, prompt), RequestChannel(Events()))
