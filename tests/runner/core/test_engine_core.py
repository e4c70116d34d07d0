"""The core over a fake executor: when a step is planned anew, and when it follows from the one before."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, cast

import pytest

from ollama_engine.errors import ClosedError, ContextOverflowError
from ollama_engine.input import Batch
from ollama_engine.runner.core import engine_core as core_module
from ollama_engine.runner.core.engine_core import EngineCore
from ollama_engine.runner.observe.monitor import Monitor
from ollama_engine.runner.request.channel import RequestChannel
from ollama_engine.runner.request.inputs import Inputs
from ollama_engine.runner.request.options import RequestOptions
from ollama_engine.runner.request.results import Chunk
from ollama_engine.runner.schedule.sequence import Generation
from ollama_engine.runner.schedule.steering import Draft
from ollama_engine.runner.schedule.text_emitter import TextEmitter
from ollama_engine.sample import Sampler, SamplingParams
from tests.runner.fakes import N_VOCAB, Events, FakeCache, FakeExecutor


class Guesser:
    """Guesses one token, which is right, whatever that costs."""

    source = None

    def propose(self, tokens: Sequence[int], most: int) -> Draft:
        return Draft((0,))

    def end(self, answer: Sequence[int]) -> None:
        pass


class Letters:
    """Every token is an "a"."""

    def push(self, token: int) -> str:
        return "a"

    def flush(self) -> str:
        return ""


class Asked:
    """A request for `max_tokens` tokens, and what came out of it."""

    def __init__(self, max_tokens: int, options: RequestOptions | None = None, num_ctx: int = 200) -> None:
        params = SamplingParams(temperature=0, max_tokens=max_tokens)
        self.events = Events()
        self.sequence = Generation(
            channel=RequestChannel(self.events), inputs=Inputs.text([1, 2, 3]), num_ctx=num_ctx,
            options=options or RequestOptions(),
            params=params, sampler=Sampler(params, N_VOCAB), emitter=TextEmitter(Letters()), eog_ids=frozenset(),
            n_prompt=3,
        )  # fmt: skip

    @property
    def n_tokens(self) -> int:
        return sum(len(event.tokens) for event in self.events.all if isinstance(event, Chunk))

    @property
    def end(self) -> object:
        last = self.events.all[-1]
        return last.finish_reason if isinstance(last, Chunk) else last


class FillingExecutor(FakeExecutor):
    """Takes a cell of the cache for each token."""

    def __init__(self, cache: FakeCache) -> None:
        super().__init__()
        self.cache = cache

    def prepare(self, batch: Batch, needed: Sequence[int] = ()) -> None:
        assert len(batch) <= self.cache.room
        super().prepare(batch, needed)
        self.cache.lengths.update(batch.sequences.tolist())

    def scrap(self) -> None:
        if self._prepared is not None:
            self.cache.lengths.subtract(self._prepared.sequences.tolist())
        super().scrap()


class Rig:
    """A core, and how often it planned."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, parallel: int = 3) -> None:
        self.cache = FakeCache()
        self.executor = FillingExecutor(self.cache)
        self.core = EngineCore(cast(Any, self.executor), cast(Any, self.cache), parallel, Monitor(str), verify=True)
        self.counts: Counter[str] = Counter()
        plan = core_module.plan

        def counting(*args: Any) -> object:
            self.counts["plans"] += 1
            return plan(*args)

        monkeypatch.setattr(core_module, "plan", counting)

    def add(self, *asked: Asked) -> None:
        for request in asked:
            self.core.add(request.sequence)

    def step(self, n: int) -> int:
        """Steps; how many of them planned."""
        before = self.counts["plans"]
        for _ in range(n):
            self.core.step()
        return self.counts["plans"] - before

    def finish(self) -> None:
        while self.core.busy:
            self.core.step()


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch) -> Rig:
    return Rig(monkeypatch)


def test_answers_that_go_on_are_not_planned_again(rig: Rig) -> None:
    first, other = Asked(60), Asked(80)
    rig.add(first, other)
    assert rig.step(4) > 0
    assert rig.step(50) == 0
    rig.finish()
    assert (first.n_tokens, first.end, other.n_tokens, other.end) == (60, "length", 80, "length")
    assert rig.counts["plans"] < 12


def test_who_comes_in_between_is_served_at_once(rig: Rig) -> None:
    first, late = Asked(60), Asked(10)
    rig.add(first)
    rig.step(20)
    rig.add(late)
    assert rig.step(3) > 0
    assert late.n_tokens > 0
    assert rig.step(5) == 0
    rig.finish()
    assert (first.n_tokens, late.n_tokens) == (60, 10)


def test_who_leaves_in_between_is_left_out(rig: Rig) -> None:
    first, gone = Asked(60), Asked(60)
    rig.add(first, gone)
    rig.step(20)
    gone.sequence.channel.cancelled = True
    rig.step(3)
    assert isinstance(gone.end, ClosedError)
    before = len(rig.executor.served)
    assert rig.step(10) == 0
    assert len(rig.executor.served) == before + 10
    rig.finish()
    assert first.n_tokens == 60


def test_a_full_context_is_shifted_in_between(rig: Rig) -> None:
    first, other = Asked(70, RequestOptions("shift"), num_ctx=16), Asked(70)
    rig.add(first, other)
    rig.finish()
    assert (first.n_tokens, first.end, other.n_tokens) == (70, "length", 70)
    assert rig.core.metrics().shifts > 3
    assert 0 < rig.counts["plans"] < 60


def test_a_cache_that_fills_up_has_the_younger_one_give_way(rig: Rig) -> None:
    rig.cache.n_cells = 40
    first, other = Asked(33, RequestOptions(cache=False)), Asked(33, RequestOptions(cache=False))
    rig.add(first, other)
    rig.finish()
    assert (first.n_tokens, other.n_tokens) == (33, 33)
    assert rig.core.metrics().preemptions > 0


@pytest.mark.parametrize("n_cells", [12, 13])
def test_an_answer_for_which_there_are_no_cells_ends_with_all_of_its_tokens(rig: Rig, n_cells: int) -> None:
    """A step with drafts is prepared before the tokens of the one before are delivered."""
    rig.cache.n_cells = n_cells
    answer = Asked(60)
    answer.sequence.drafter = Guesser()
    rig.add(answer)
    rig.finish()
    assert isinstance(answer.end, ContextOverflowError)
    assert answer.n_tokens == len(answer.sequence.sampled) > 8
