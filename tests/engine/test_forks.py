"""Several answers to one prompt, and requests that go on from others: exact, and sharing what is computed."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from ollama_engine import Engine, SamplingParams
from ollama_engine.errors import ClosedError, ConfigError, ContextOverflowError
from ollama_engine.runner.request.request import Request
from tests.support.tiny import write_tiny_llama
from tests.support.tiny_answers import NO_END

PROMPT = [5, 77, 200, 31, 8, 19, 4] * 8
PATIENCE = 50


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_tiny_llama(tmp_path_factory.mktemp("tiny") / "tiny.gguf", n_layer=2, seed=4).path


@pytest.fixture
def engine(path: str) -> Iterator[Engine]:
    # f32, because a draw may fall to either side of what f16 rounds.
    with Engine(path, num_ctx=128, parallel=4, threads=1, kv_cache_type="f32", verify=True) as made:
        yield made


def drawn(n: int = 8, **fields: Any) -> SamplingParams:
    return SamplingParams(**{"temperature": 1.0, "max_tokens": n, "logit_bias": NO_END, "seed": 11, **fields})


def lone(engine: Engine, ids: list[int], params: SamplingParams) -> tuple[int, ...]:
    return engine.generate(ids, params, cache=False).tokens


# -- n -----------------------------------------------------------------------------------------------------------------


@pytest.mark.cpu_only
def test_answers_share_the_prompt_and_count_seeds_up(engine: Engine) -> None:
    found = engine.generate(PROMPT, drawn(), n=6)  # more than run at once
    assert engine.metrics.prompt_tokens == len(PROMPT) + 5
    assert [answer.usage.cached_tokens for answer in found] == [0] + [len(PROMPT) - 1] * 5
    assert [answer.tokens for answer in found] == [lone(engine, PROMPT, drawn(seed=11 + i)) for i in range(6)]
    assert len({answer.tokens for answer in found}) > 1


def test_seeds_begin_again_after_the_last(engine: Engine) -> None:
    found = engine.generate(PROMPT, drawn(seed=2**64 - 1), n=2)
    assert found[1].tokens == lone(engine, PROMPT, drawn(seed=0))


def test_without_a_seed_answers_differ(engine: Engine) -> None:
    assert len({answer.tokens for answer in engine.generate(PROMPT, drawn(seed=None), n=4)}) > 1


def test_one_answer_asked_for_by_number_is_a_list(engine: Engine) -> None:
    (found,) = engine.generate(PROMPT, drawn(), n=1)
    assert found.tokens == engine.generate(PROMPT, drawn()).tokens


@pytest.mark.cpu_only
def test_several_prompts_give_one_flat_list(engine: Engine) -> None:
    prompts = [PROMPT, PROMPT[:9], [7]]
    found = engine.generate(prompts, drawn(), n=2)
    expected = [lone(engine, prompt, drawn(seed=11 + i)) for prompt in prompts for i in range(2)]
    assert [answer.tokens for answer in found] == expected
    assert asyncio.run(answers(engine, prompts, 2)) == expected


async def answers(engine: Engine, prompts: list[list[int]], n: int) -> list[tuple[int, ...]]:
    return [answer.tokens for answer in await engine.agenerate(prompts, drawn(), n=n)]


@pytest.mark.parametrize("n", [0, -1, 1.0, True, "2"])
def test_n_is_a_whole_number(engine: Engine, n: Any) -> None:
    with pytest.raises(ConfigError, match="n is a whole number from 1"):
        engine.generate(PROMPT, n=n)


@pytest.mark.parametrize("call", ["submit", "stream"])
def test_one_stream_is_one_answer(engine: Engine, call: str) -> None:
    with pytest.raises(TypeError, match="takes no 'n'"):
        getattr(engine, call)(PROMPT, drawn(), n=2)


def test_answers_that_keep_to_themselves_share_nothing(engine: Engine) -> None:
    found = engine.generate(PROMPT, drawn(), n=3, cache=False)
    assert [answer.usage.cached_tokens for answer in found] == [0, 0, 0]


def test_many_answers_are_one_request_to_the_queue(path: str) -> None:
    with Engine(path, num_ctx=128, parallel=1, max_queue=1, threads=1) as engine:
        assert len(engine.generate(PROMPT, drawn(2), n=20)) == 20


def test_where_one_is_refused_none_begins(path: str) -> None:
    with Engine(path, num_ctx=32, threads=1) as engine:
        with pytest.raises(ContextOverflowError):
            engine.generate([PROMPT[:3], PROMPT], drawn(), n=3)
        assert engine.slots() == []


def test_a_leader_that_leaves_early_holds_nobody_up(engine: Engine) -> None:
    found = engine.generate(PROMPT, drawn(0), n=3)
    assert [answer.tokens for answer in found] == [()] * 3
    late = engine.submit(PROMPT, drawn(50), timeout=1e-9)
    fork = engine.fork(late, drawn(), timeout=None)
    assert fork.result(PATIENCE).tokens == lone(engine, PROMPT, drawn())


# -- fork --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("taken", [0, 1, 5, 20])
def test_a_fork_goes_on_from_what_was_taken(engine: Engine, taken: int) -> None:
    request = engine.submit(PROMPT, drawn(20))
    for _ in range(taken):
        next(request)
    assert len(request.tokens) == taken
    fork = engine.fork(request, drawn(seed=3))
    assert fork.prompt == (*PROMPT, *request.tokens)
    found = fork.result(PATIENCE)
    assert found.tokens == lone(engine, list(fork.prompt), drawn(seed=3))
    assert found.usage.cached_tokens == len(fork.prompt) - 1
    assert request.result(PATIENCE).tokens == lone(engine, PROMPT, drawn(20))


def test_a_fork_has_the_parameters_and_options_of_its_source(engine: Engine) -> None:
    request = engine.submit(PROMPT, drawn(5, temperature=0), on_overflow="shift", num_keep=3)
    request.result(PATIENCE)
    fork = engine.fork(request, num_keep=4)
    assert fork.generation is not None
    assert (fork.generation.options.on_overflow, fork.generation.options.num_keep) == ("shift", 4)
    again = engine.fork(fork)
    assert again.result(PATIENCE).tokens == lone(engine, list(fork.prompt), drawn(5, temperature=0))


def test_forks_of_a_prompt_that_waits_wait_with_it(path: str) -> None:
    with Engine(path, num_ctx=128, parallel=2, batch_size=8, threads=1, verify=True) as engine:
        request = engine.submit(PROMPT, drawn())
        forks = [engine.fork(request) for _ in range(4)]
        assert {fork.result(PATIENCE).tokens for fork in forks} == {request.result(PATIENCE).tokens}
        assert engine.metrics.prompt_tokens == len(PROMPT) + 4


def test_a_fork_of_a_cancelled_request(engine: Engine) -> None:
    cancelled = threading.Event()

    def wait(ids: npt.NDArray[np.int32], logits: npt.NDArray[np.float32]) -> None:
        assert len(ids) < len(PROMPT) + 2 or cancelled.wait(PATIENCE)

    request = engine.submit(PROMPT, drawn(50), logits_processors=[wait])
    next(request)
    request.cancel()
    cancelled.set()
    with pytest.raises(ClosedError):
        request.result(PATIENCE)
    assert engine.fork(request, drawn()).result(PATIENCE).tokens == lone(engine, [*PROMPT, *request.tokens], drawn())


def test_a_fork_of_a_shifted_request_begins_with_all_it_had(engine: Engine) -> None:
    request = engine.submit(PROMPT, drawn(100), on_overflow="shift", num_keep=2)
    request.result(PATIENCE)
    with pytest.raises(ContextOverflowError, match="156 tokens"):
        engine.fork(request, on_overflow="error")
    assert engine.fork(request, drawn()).result(PATIENCE).usage.dropped_prompt_tokens == 156 - 128


def test_what_cannot_be_forked(engine: Engine, path: str) -> None:
    with Engine(path, num_ctx=64, threads=1) as other:
        request = other.submit([1, 2], drawn())
        with pytest.raises(ConfigError, match="of this Engine"):
            engine.fork(request)
    for bad in (Request(engine), None, engine.stream([1, 2], drawn(1))):
        with pytest.raises(ConfigError, match="fork takes a Request"):
            engine.fork(bad)  # type: ignore[arg-type]


def test_a_chain_of_forks_is_freed(engine: Engine) -> None:
    request = engine.submit(PROMPT, drawn(2))
    first = weakref.ref(request)
    for _ in range(5):
        request.result(PATIENCE)
        request = engine.fork(request)
    request.result(PATIENCE)
    gc.collect()
    assert first() is None
    assert request.generation is not None
    assert request.generation.follows is None
