"""What the engine reports of itself: slots, counts that add up, a timeline, and the log of its batches."""

from __future__ import annotations

import json
import logging
import re
from collections import Counter
from collections.abc import Iterator

import pytest

from ollama_engine import Engine, SamplingParams, demo
from ollama_engine.errors import ClosedError, ContextOverflowError, DeadlineError, SamplingError
from ollama_engine.runner.observe.monitor import TRACE, outcome_of
from tests.support.engine_thread import held_in, idle
from tests.support.waiting import eventually


@pytest.fixture
def engine() -> Iterator[Engine]:
    with Engine(demo.path(), num_ctx=128, parallel=2, batch_size=32, threads=1, verify=True) as made:
        yield made


def greedy(max_tokens: int) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=max_tokens)


def test_an_answer_comes_after_its_steps_are_counted(engine: Engine) -> None:
    """The engine's thread is held up right after it has sent the answer."""
    with held_in(engine._core.queue, "sweep", calls=6) as is_held:
        answer = engine.submit("Once", greedy(5))
        is_held()
        assert answer.done
        got = engine.metrics
    usage = answer.result(30).usage
    assert (got.steps, got.completion_tokens, got.prompt_tokens) == (5, 5, usage.prompt_tokens)


def test_counts_add_up(engine: Engine) -> None:
    texts = ["Once upon a time", "Once upon a time there was", "The fox", "A red ball"]
    found = [engine.generate(text, greedy(12)) for text in texts]
    found += [engine.generate(text, greedy(5), cache=False) for text in texts]
    found += engine.generate(texts, greedy(7))
    stopped = engine.generate(texts[0], SamplingParams(temperature=0, max_tokens=50, stop=(found[0].text[5:9],)))
    with pytest.raises(DeadlineError):
        engine.generate(texts[0], greedy(100), timeout=1e-6)
    with pytest.raises(SamplingError):
        engine.generate(texts[0], SamplingParams(logit_bias=dict.fromkeys(range(engine.info.n_vocab), float("-inf"))))
    idle(engine)
    got, usages = engine.metrics, [completion.usage for completion in [*found, stopped]]
    assert got.completion_tokens >= sum(usage.completion_tokens for usage in usages)
    # A token that is computed while a stop text is found may be sampled, and dropped.
    assert got.completion_tokens <= sum(usage.completion_tokens for usage in usages) + 1
    prompts = sum(usage.prompt_tokens for usage in usages)
    failed = len(engine.tokenize(texts[0]))
    assert prompts <= got.prompt_tokens + got.cached_tokens <= prompts + 2 * failed
    assert got.cached_tokens >= sum(usage.cached_tokens for usage in usages)
    ended = Counter(completion.finish_reason for completion in [*found, stopped])
    assert {name: n for name, n in got.requests.items() if n} == {**ended, "deadline": 1, "error": 1}
    assert got.steps == got.graphs_built + got.graphs_reused == got.step_seconds.count
    assert (got.queued, got.running) == (0, 0)
    assert got.cells.used + got.cells.free == 2 * 128
    assert 0 < got.graph_reuse_rate < 1


def test_slots_show_who_is_here(engine: Engine) -> None:
    endless = {"format": {"type": "string", "minLength": 100_000}, "on_overflow": "shift"}
    running = [engine.submit(text, greedy(1_000_000), priority=1, **endless) for text in ("Once", "The fox")]
    for request in running:
        next(request)
    waiting = engine.submit("A red ball", greedy(3))
    eventually(lambda: len(engine.slots()) == 3)  # it is on its way
    slots = engine.slots()
    assert [slot.id for slot in slots] == [0, 1, 2]
    assert [slot.state for slot in slots] == ["answer", "answer", "waiting"]
    assert [slot.sequence for slot in slots] == [0, 1, None]
    assert [slot.priority for slot in slots] == [1, 1, 0]
    assert [slot.prompt_tokens for slot in slots] == [
        len(engine.tokenize(t)) for t in ("Once", "The fox", "A red ball")
    ]
    assert all(slot.computed_tokens >= slot.prompt_tokens and slot.completion_tokens > 0 for slot in slots[:2])
    assert all(slot.seconds > 0 and slot.preemptions == 0 for slot in slots)
    for request in running:
        request.cancel()
    assert len(waiting.result(30).tokens) == 3
    idle(engine)
    assert engine.slots() == []


def test_the_timeline_has_every_step_and_request(engine: Engine) -> None:
    engine.generate(["Once upon a time", "The fox"], greedy(6))
    idle(engine)
    trace = json.loads(engine.trace())
    events = trace["traceEvents"]
    steps = {event["name"]: event["args"] for event in events if event["ph"] == "X"}
    assert len(steps) == engine.metrics.steps
    assert sum(args["completion_tokens"] for args in steps.values()) == engine.metrics.completion_tokens == 12
    assert sum(args["prompt_tokens"] for args in steps.values()) == engine.metrics.prompt_tokens
    assert all(event["dur"] >= 0 and event["ts"] >= 0 for event in events if event["ph"] == "X")
    begins = {event["id"]: event for event in events if event["ph"] == "b"}
    ends = {event["id"]: event for event in events if event["ph"] == "e"}
    assert begins.keys() == ends.keys() == {"0", "1"}
    assert all(begins[key]["ts"] < ends[key]["ts"] for key in begins)
    assert [begins[key]["args"]["outcome"] for key in begins] == ["length", "length"]
    assert [begins[key]["args"]["completion_tokens"] for key in begins] == [6, 6]
    assert {event["name"] for event in events if event["ph"] == "n"} == {"started"}


def test_the_log_shows_batches_with_ids_and_texts(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(TRACE, "ollama_engine.trace"):
        found = engine.generate("Once upon a time", greedy(3))
        idle(engine)
    lines = [record.getMessage() for record in caplog.records if record.name == "ollama_engine.trace"]
    assert lines[0].startswith("step 0 request 0 sequence 0 position 0 logits 1: ")
    ids = [[int(token) for token in re.findall(r"(\d+)='", line)] for line in lines]
    assert ids[0] == engine.tokenize("Once upon a time")
    assert [token for line in ids[1:] for token in line] == list(found.tokens[:-1])
    assert f"{found.tokens[0]}={engine._loaded.tokenizer.token_text(found.tokens[0])!r}" in lines[1]
    assert {record.levelno for record in caplog.records if record.name == "ollama_engine.trace"} == {TRACE}


def test_nothing_is_logged_of_batches_by_default(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        engine.generate("Once", greedy(2))
    assert not [record for record in caplog.records if record.name == "ollama_engine.trace"]


def test_how_early_ends_are_counted() -> None:
    errors = [DeadlineError(""), ClosedError(""), ContextOverflowError(""), ZeroDivisionError()]
    assert [outcome_of(error) for error in errors] == ["deadline", "cancelled", "error", "error"]
