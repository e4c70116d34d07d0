"""`bench --parallel`: what counts as prompt and as answer, the requests that are made, and how it ends early."""

from __future__ import annotations

import json
import statistics
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ollama_engine import Engine, SamplingParams
from ollama_engine.cli.errors import UsageError
from ollama_engine.cli.measure.bench.plan import BenchPlan
from ollama_engine.cli.measure.bench.streams import Arrival, Speeds, measure_streams, speeds_of
from ollama_engine.errors import ComputeError
from ollama_engine.runner.request.results import Chunk

A_SECOND = 5  # of a wait that should not happen


# -- which tokens count where ------------------------------------------------------------------------------------------


def arrivals(first: float, step: float, n: int) -> list[Arrival]:
    return [Arrival(first + i * step, 1) for i in range(n)]


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        # Prompts of 100 tokens at 10.0 s; one stream: first token after 0.5 s, then 4 more in 2 s.
        ([arrivals(10.5, 0.5, 5)], Speeds(200.0, 2.0)),
        # Together: twice as many tokens in the same time.
        ([arrivals(10.5, 0.5, 5), arrivals(10.5, 0.5, 5)], Speeds(400.0, 4.0)),
        # One after the other: the first one's answer is over before the last one's begins.
        ([arrivals(10.5, 0.5, 5), arrivals(13.0, 0.5, 5)], Speeds(200 / 3, 2.0)),
        # Overlapping: of the first stream, 2 tokens come after the second one's first.
        ([arrivals(10.5, 0.5, 5), arrivals(11.6, 0.5, 5)], Speeds(200 / 1.6, 6 / 2.0)),
        # The first stream's second token is of the step that gives the second stream its first, and comes a bit later.
        ([arrivals(10.5, 0.51, 3), arrivals(11.0, 0.5, 2)], Speeds(200.0, 2 / 0.52)),
        # Several tokens in one piece, and an end that is not the last stream's.
        ([[Arrival(11.0, 1), Arrival(14.0, 3)], [Arrival(12.0, 1), Arrival(13.0, 3)]], Speeds(100.0, 3.0)),
    ],
)
def test_speeds(answers: list[list[Arrival]], expected: Speeds) -> None:
    found = speeds_of(100, 10.0, answers)
    assert found.prefill_tps == pytest.approx(expected.prefill_tps)
    assert found.decode_tps == pytest.approx(expected.decode_tps)


# -- through an engine -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def engine(tiny: str) -> Iterator[Engine]:
    with Engine(tiny, num_ctx=256, parallel=4, threads=1) as engine:
        yield engine


class Recording:
    """An engine that notes what is asked of it, and who asks."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self.prompts: list[list[int]] = []
        self.params: list[SamplingParams] = []
        self.threads: set[int] = set()

    def stream(self, prompt: list[int], params: SamplingParams) -> Any:
        self.prompts.append(prompt)
        self.params.append(params)
        self.threads.add(threading.get_ident())
        return self._engine.stream(prompt, params)


def test_requests(engine: Engine) -> None:
    shown: list[str] = []
    asked = Recording(engine)
    plan = BenchPlan(24, 6, 2, warmup=True, parallel=(1, 3))
    found = measure_streams(asked, plan, 300, {318, 319}, shown.append)
    assert [len(samples[name]) for samples in found for name in ("prefill_tps", "decode_tps")] == [2] * 4
    assert min(min(speeds) for samples in found for speeds in samples.values()) > 0
    # A warm-up and two repetitions of each width; no two prompts are the same, nor begin alike by more than chance.
    assert len(asked.prompts) == 3 * (1 + 3)
    assert {len(prompt) for prompt in asked.prompts} == {24}
    assert len({tuple(prompt[:4]) for prompt in asked.prompts}) == len(asked.prompts)
    assert max(max(prompt) for prompt in asked.prompts) < 300
    assert [params.max_tokens for params in asked.params] == [2, 6, 6, *[2] * 3, *[6] * 6]
    assert all(dict(params.logit_bias or {}) == {318: float("-inf"), 319: float("-inf")} for params in asked.params)
    assert threading.get_ident() not in asked.threads
    assert shown == [
        "1 stream of 24 + 6 tokens: warm-up", "1 stream of 24 + 6 tokens: 1 of 2", "1 stream of 24 + 6 tokens: 2 of 2",
        "3 streams of 24 + 6 tokens: warm-up", "3 streams of 24 + 6 tokens: 1 of 2",
        "3 streams of 24 + 6 tokens: 2 of 2",
    ]  # fmt: skip


def test_answers_do_not_end_early(engine: Engine) -> None:
    """Where every token but one would end the answer, that one is drawn each time."""
    plan = BenchPlan(4, 20, 1, warmup=False, parallel=(2,))
    assert measure_streams(engine, plan, 300, set(range(1, engine.info.n_vocab)), print)[0]["decode_tps"][0] > 0


class Scripted:
    """An engine whose streams do what a function says; counts those that were opened and closed."""

    def __init__(self, chunks: Callable[[Scripted], Iterator[Chunk]]) -> None:
        self._chunks = chunks
        self.opened = self.closed = 0
        self.released = threading.Event()

    def stream(self, prompt: list[int], params: SamplingParams) -> Any:
        owner = self
        self.opened += 1

        class Stream:
            def __iter__(self) -> Iterator[Chunk]:
                return owner._chunks(owner)

            def close(self) -> None:
                owner.closed += 1
                owner.released.set()

        return Stream()


def test_an_answer_that_is_too_short_is_an_error() -> None:
    engine = Scripted(lambda engine: iter([Chunk("a", (1,)), Chunk("b", (2,)), Chunk("", finish_reason="stop")]))
    with pytest.raises(ComputeError, match="a stream ended after 2 of 6 tokens"):
        measure_streams(engine, BenchPlan(4, 6, 1, warmup=False, parallel=(2,)), 300, (), print)


def test_an_error_in_one_stream_ends_all() -> None:
    """One fails, whichever it is; the other one would wait for ever if nobody closed it."""
    turn = iter(range(2))

    def chunks(engine: Scripted) -> Iterator[Chunk]:
        if next(turn) == 0:
            raise ComputeError("the device is gone")
        assert engine.released.wait(A_SECOND)
        yield Chunk("", finish_reason="stop")

    engine = Scripted(chunks)
    with pytest.raises(ComputeError, match="the device is gone"):
        measure_streams(engine, BenchPlan(4, 6, 1, warmup=False, parallel=(2,)), 300, (), print)
    assert engine.closed == engine.opened >= 1


# -- the command -------------------------------------------------------------------------------------------------------


def test_json(cli, tiny: str) -> None:
    args = ["bench", tiny, "-p", "24", "-n", "6", "-t", "1", "-r", "3", "--no-warmup", "--parallel", "1,3", "--json"]
    result = cli(*args)
    assert (result.code, result.err) == (0, "")
    found = json.loads(result.out)
    assert [set(row) for row in found["parallel"]] == [{"streams", "prefill_tps", "decode_tps", "samples"}] * 2
    assert [row["streams"] for row in found["parallel"]] == [1, 3]
    for row in found["parallel"]:
        for name in ("prefill_tps", "decode_tps"):
            assert len(row["samples"][name]) == 3
            assert row[name] == statistics.median(row["samples"][name]) > 0
    assert found["num_ctx"] == 256  # of one stream: prompt and answer, rounded up


def test_the_table(cli, tiny: str) -> None:
    result = cli("bench", tiny, "-p", "8", "-n", "2", "-r", "1", "-t", "1", "--parallel", "1,2")
    assert (result.code, result.err) == (0, "")
    last = result.out.split("\n\n")[-1].splitlines()
    assert last[0].split() == ["streams", "prefill", "tokens/s", "least", "most", "decode", "tokens/s", "least", "most"]
    assert [line.split()[0] for line in last[1:]] == ["1", "2"]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--parallel", "0,1"], "--parallel are numbers of streams, 1 or more; got 0"),
        (["--parallel", "1025"], "parallel is a whole number from 1 to 1024, got 1025"),
        (["--parallel", "1,x"], "expected whole numbers such as 1,2,4, got '1,x'"),
        (["--parallel", "1", "-n", "1"], "-p is 1 or more and -n 2 or more; got 512 and 1"),
        (["--parallel", "1", "-p", "0"], "-p is 1 or more and -n 2 or more; got 0 and 128"),
    ],
)
def test_wrong_usage(cli, tiny: str, args: list[str], message: str) -> None:
    result = cli("bench", tiny, *args)
    assert (result.code, result.out) == (2, "")
    assert message in result.err


def test_a_plan_is_checked() -> None:
    with pytest.raises(UsageError, match="numbers of streams"):
        BenchPlan(1, 2, 1, warmup=True, parallel=(2, -1))
    assert BenchPlan(128, 64, 1, warmup=True, parallel=(1, 8), depths=(0, 4096)).num_ctx_of_stream == 256
