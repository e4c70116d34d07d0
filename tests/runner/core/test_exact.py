"""Random schedules: whatever requests do to each other, each gets the tokens that it gets alone."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings

from ollama_engine import demo
from ollama_engine.errors import ClosedError, DeadlineError
from ollama_engine.runner.load import caches
from ollama_engine.runner.load.loading import Loaded
from ollama_engine.runner.request.results import Chunk, Result
from ollama_engine.runner.schedule.scoring import Scoring
from ollama_engine.runner.schedule.sequence import Generation
from ollama_engine.runner.schedule.text_emitter import TextEmitter
from tests.models.cases import difference
from tests.models.variants import loaded, prompt
from tests.runner.lone import Lone, Task
from tests.runner.schedules import MEMORY, Asked, Run, Schedule, schedules
from tests.support.gguf_files import write_and_close
from tests.support.mixed_model import mixed_llama
from tests.support.suite import scaled, slow_except
from tests.support.tiny import write_tiny_llama

STORY = "Once upon a time there was a little fox who lived in a big wood. One day she found a red ball. " * 3


@dataclass
class World:
    """A model, loaded twice: for schedules, and for lone runs. And what was counted over all schedules."""

    parts: Loaded
    lone: Lone
    documents: list[list[int]]
    tie: float
    """The best two logits are as good as equal below this distance, in standard deviations of their row."""
    tolerance: float
    """For logits, in the same unit."""
    counts: dict[str, int] = field(default_factory=dict)

    def __repr__(self) -> str:
        return "World()"  # what hypothesis prints of it

    def count(self, **counts: int) -> None:
        for name, n in counts.items():
            self.counts[name] = self.counts.get(name, 0) + n

    def answer(self, ids: tuple[int, ...], n: int) -> list[int]:
        return [pick.token for pick in self.lone.picks(Task(ids, 256), n)]


def write_floats(source: str, path: Path) -> str:
    """The same model with float32 weights."""
    reader, writer = gguf.GGUFReader(source), gguf.GGUFWriter(os.fspath(path), "llama")
    for name, entry in reader.fields.items():
        if not name.startswith("GGUF.") and name != "general.architecture":
            writer.add_key_value(name, entry.contents(), entry.types[0], entry.types[-1])
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, gguf.quants.dequantize(tensor.data, tensor.tensor_type))
    write_and_close(writer)
    return os.fspath(path)


def make(stack: ExitStack, folder: Path, kind: str, **options: Any) -> World:
    if kind == "mixed":
        path = write_tiny_llama(folder / "mixed.gguf", n_layer=3, n_ctx=256, seed=3).path
        stack.enter_context(mixed_llama())
    elif kind == "tiny":
        path = write_tiny_llama(folder / "tiny.gguf", n_layer=2, n_ctx=256, seed=5).path
    else:
        path = demo.path() if kind == "demo q8_0" else write_floats(demo.path(), folder / "demo.gguf")
    options = {"threads": 1, "parallel": 6, "batch_size": 64, "num_ctx": 64, **options}
    with patch.object(caches, "RESUME_TOKENS", MEMORY):
        parts = stack.enter_context(loaded(path, **options))
    with patch.object(caches, "RESUME_TOKENS", 1 << 20):
        lone = Lone(stack.enter_context(loaded(path, **{**options, "parallel": 1, "num_ctx": 256})))
    documents = [prompt(90, seed=1), prompt(90, seed=2), prompt(20, seed=1) + prompt(70, seed=3)]
    if kind.startswith("demo"):
        ids = parts.tokenizer.encode(STORY)
        documents = [ids[:90], ids[5:95], ids[:20] + ids[40:110]]
    if kind == "demo q8_0":
        # Products with quantized weights round what they read to 8 bits, so that a last bit that differs by the number
        # of rows may become 1 in 254.
        return World(parts, lone, documents, 1e-2, 2e-2)
    return World(parts, lone, documents, 1e-3, 1e-4 if options["kv_cache_type"] == "f32" else 2e-2)


KINDS: dict[str, dict[str, Any]] = {
    "tiny f32 flash": {"kind": "tiny", "kv_cache_type": "f32"},
    "tiny f32 permuted": {"kind": "tiny", "kv_cache_type": "f32", "flash_attention": "off"},
    "tiny f16 permuted": {"kind": "tiny", "kv_cache_type": "f16", "flash_attention": "off"},
    "demo f32 flash": {"kind": "demo", "kv_cache_type": "f32"},
    "demo f16 flash": {"kind": "demo", "kv_cache_type": "f16"},
    "demo f16 permuted": {"kind": "demo", "kv_cache_type": "f16", "flash_attention": "off"},
    "demo q8_0 f32 flash": {"kind": "demo q8_0", "kv_cache_type": "f32"},
    "mixed f32 flash": {"kind": "mixed", "kv_cache_type": "f32"},
    "mixed f32 permuted": {"kind": "mixed", "kv_cache_type": "f32", "flash_attention": "off"},
}


QUICK_KINDS = ("tiny f32 flash", "demo q8_0 f32 flash", "mixed f32 permuted")


@pytest.fixture(scope="module", params=slow_except(KINDS, *QUICK_KINDS))
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with ExitStack() as stack:
        made = make(stack, tmp_path_factory.mktemp("world"), **KINDS[request.param])
        yield made


@pytest.fixture(scope="module")
def totals() -> Counter[str]:
    return Counter()


@settings(
    max_examples=int(os.environ.get("SCHEDULES", scaled(36, quick=6))),
    # Much the same ones in every run, unless more are asked for; to see a failing one made small, add Phase.shrink.
    derandomize="SCHEDULES" not in os.environ,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(schedules())
def test_everybody_gets_the_tokens_they_get_alone(world: World, schedule: Schedule) -> None:
    check_schedule(world, schedule)


def test_ties_are_rare(world: World, totals: Counter[str]) -> None:
    """After the schedules above."""
    print(world.counts)
    counts = world.counts
    totals.update(counts)
    assert counts.get("ties", 0) <= max(1, counts["tokens"] / 1000)


@pytest.mark.slow
def test_all_that_can_happen_has_happened(totals: Counter[str]) -> None:
    """In some world."""
    print(totals)
    assert totals["tokens"] > 5000
    assert totals["uncompared"] <= totals["tokens"] / 10
    happened = ("preemptions", "evictions", "shifts", "restarts", "cached", "refused", "forks", "drafted")
    for name in (*happened, "prompt_logprobs", "scored"):
        assert totals[name] > 0, f"no schedule led to {name}"


def check_schedule(world: World, schedule: Schedule) -> None:
    run = Run(world.parts, schedule, world.documents, world.answer)
    try:
        run.run()
        for asked in run.asked:
            assert asked.events, f"{asked.wish} was never answered"
            if isinstance(asked.sequence, Scoring):
                check_scores(world, asked)
            else:
                check_answer(world, schedule, asked)
        check_nothing_left(run)
    finally:
        run.core.fail_all(ClosedError("the schedule is over"))
    note(world, run)


def check_scores(world: World, asked: Asked) -> None:
    sequence = asked.sequence
    assert isinstance(sequence, Scoring)
    if isinstance(asked.end, Result):
        rows = sequence.row_reader.result()
        assert asked.end.value is rows
        begin = min(asked.wish.rows_from, len(asked.prompt) - 1)
        assert difference(rows[begin:], world.lone.scores(asked.prompt)[begin:]) <= world.tolerance  # type: ignore[index]
        world.count(scored=len(asked.prompt) - begin)
    else:
        check_error(asked)


def check_prompt_logprobs(world: World, asked: Asked) -> None:
    chunks = [event for event in asked.events if isinstance(event, Chunk)]
    wanted = asked.wish.prompt_logprobs
    assert all(chunk.prompt_logprobs is None for chunk in (chunks if wanted is None else chunks[1:]))
    if wanted is None or not chunks:
        return
    found = chunks[0].prompt_logprobs
    assert found is not None
    assert (len(found), found[0]) == (len(asked.prompt), None)
    rows = world.lone.scores(asked.prompt)[: len(found) - 1].astype(np.float64)
    allowed = 2 * world.tolerance * rows.std(axis=1)
    expected = rows - np.logaddexp.reduce(rows, axis=1, keepdims=True)
    for entry, token, row, near in zip(found[1:], asked.prompt[1:], expected, allowed, strict=True):
        assert entry is not None
        assert (entry.token, len(entry.top)) == (token, wanted)
        assert abs(entry.logprob - row[token]) <= near
        assert all(abs(logprob - row[best]) <= near for best, logprob in entry.top)
    world.count(prompt_logprobs=len(found))


def check_answer(world: World, schedule: Schedule, asked: Asked) -> None:
    sequence = asked.sequence
    assert isinstance(sequence, Generation)
    check_prompt_logprobs(world, asked)
    keep = sequence.keep if asked.wish.overflow == "shift" else None
    restarts = dict([(0, asked.prompt), *asked.restarts])
    task: Task | None = None
    base = 0
    for at, token in enumerate([*asked.tokens, None]):
        if at in restarts:
            task, base = Task(restarts[at], schedule.num_ctx, keep), at
        if task is None:
            world.count(uncompared=1)
            continue
        picks = world.lone.picks(task, at - base + 1)
        if token is None:
            check_end(world, schedule, asked, picks[at - base].token if at - base < len(picks) else None)
            continue
        pick = picks[at - base]
        assert pick.allows(token, world.tie), f"token {at} is {token}, alone {pick}; {asked}"
        if token != pick.token:
            world.count(ties=1)
            ids = (*asked.prompt, *asked.tokens[: at + 1])
            task, base = (Task(ids, schedule.num_ctx, keep), at + 1) if len(ids) <= schedule.num_ctx else (None, 0)
    world.count(tokens=len(asked.tokens))


def check_end(world: World, schedule: Schedule, asked: Asked, following: int | None) -> None:
    sequence, end, tokens = asked.sequence, asked.end, asked.tokens
    assert isinstance(sequence, Generation)
    assert not sequence.eog_ids & set(tokens)
    emitter = TextEmitter(world.parts.tokenizer.detokenizer(continues=True), (asked.stop,) if asked.stop else ())
    pieces = []
    for token in tokens:
        assert not emitter.stopped, "it goes on after a stop text"
        pieces.append(emitter.push(token))
    if not isinstance(end, Chunk):
        check_error(asked)
        assert asked.text == "".join(pieces)
        return
    pieces.append(emitter.flush())
    assert asked.text == "".join(pieces)
    assert end.usage is not None
    assert end.usage.completion_tokens == len(tokens)
    assert end.usage.cached_tokens < len(asked.prompt)
    if not asked.wish.cache:
        assert end.usage.cached_tokens == 0
    full = asked.wish.overflow != "shift" and len(asked.prompt) + len(tokens) >= schedule.num_ctx
    if len(tokens) == sequence.params.max_tokens or full:
        assert end.finish_reason == ("stop" if emitter.stopped else "length")
    else:
        assert end.finish_reason == "stop"
        assert emitter.stopped or following in sequence.eog_ids


def check_error(asked: Asked) -> None:
    if isinstance(asked.end, DeadlineError):
        assert asked.wish.timeout is not None
    else:
        assert isinstance(asked.end, ClosedError), repr(asked.end)
        assert asked.wish.cancel_after is not None


def check_nothing_left(run: Run) -> None:
    core = run.core
    assert not core.queue
    while core.cache_manager.evict():
        pass
    assert core.cache.usage.used == 0
    core.check()


def note(world: World, run: Run) -> None:
    metrics = run.core.metrics()
    world.count(
        schedules=1,
        requests=len(run.asked),
        refused=run.refused,
        forks=run.forks,
        preemptions=metrics.preemptions,
        evictions=metrics.evictions,
        shifts=metrics.shifts,
        cached=metrics.cached_tokens,
        restarts=sum(len(asked.restarts) for asked in run.asked),
        drafted=sum(len(event.tokens) > 1 for asked in run.asked for event in asked.events if isinstance(event, Chunk)),
        steps=metrics.steps,
    )
