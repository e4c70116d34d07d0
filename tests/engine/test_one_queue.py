"""Answers, logits and embeddings of one engine: one limit, one count, one list of who is there."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from ollama_engine import Engine, Media, SamplingParams, Text, Tokens
from ollama_engine.errors import DeadlineError, EngineBusyError, UnsupportedInputError
from ollama_engine.runner.embed.call import EmbeddingCall
from tests.support.engine_thread import held, held_in
from tests.support.tiny import write_tiny_llama
from tests.support.tiny_answers import NO_END
from tests.support.waiting import eventually

LONG = SamplingParams(temperature=0, logit_bias=NO_END)
SHORT = SamplingParams(temperature=0, max_tokens=4, logit_bias=NO_END)
MANY = [[5, 6, 7]] * 4_000
SHIFT: Any = {"on_overflow": "shift"}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_tiny_llama(tmp_path_factory.mktemp("tiny") / "tiny.gguf", n_layer=1, n_ctx=512).path


def open_engine(path: str, **options: Any) -> Engine:
    return Engine(path, **{"num_ctx": 256, "parallel": 2, "batch_size": 64, "threads": 1, **options})


@pytest.fixture
def engine(path: str) -> Iterator[Engine]:
    with open_engine(path, verify=True) as made:
        yield made


def test_calls_of_all_kinds_share_the_limit(path: str) -> None:
    with open_engine(path, parallel=1, max_queue=1) as engine, ThreadPoolExecutor(2) as pool:
        engine.embed("a")
        answer = engine.submit([1], LONG, **SHIFT)
        next(answer)
        with held_in(engine._embedding()._batcher._embedder, "compute"):
            texts = pool.submit(engine.embed, MANY)
            eventually(lambda: len(engine.slots()) == 2)
            for call in (lambda: engine.submit([2], SHORT), lambda: engine.embed("a"), lambda: engine.logits([3])):
                with pytest.raises(EngineBusyError, match="max_queue is 1"):
                    call()
            with pytest.raises(EngineBusyError):
                asyncio.run(engine.aembed("a"))
        counts = engine.metrics.requests_by_kind
        assert {kind: counts[kind]["rejected"] for kind in counts} == {"generation": 1, "scoring": 1, "embedding": 2}
        answer.cancel()
        assert texts.result().shape == (len(MANY), 64)
        assert engine.embed("a").shape == (64,)


def test_slots_and_metrics_show_texts_too(engine: Engine) -> None:
    expected = engine.generate([1, 2], SHORT).tokens
    with ThreadPoolExecutor(1) as pool:
        answer = engine.submit([1], LONG, priority=1, **SHIFT)
        next(answer)
        with held_in(engine._embedding()._batcher._embedder, "compute", calls=2) as is_held:
            texts = pool.submit(engine.embed, MANY, priority=1)
            is_held()
            (first, second), found = engine.slots(), engine.metrics
        assert (first.kind, first.state) == ("generation", "answer")
        assert first.sequence is not None
        assert (second.kind, second.state, second.sequence) == ("embedding", "batches", None)
        assert 0 < second.computed_tokens <= second.prompt_tokens <= 3 * len(MANY)
        assert (second.priority, second.completion_tokens, second.id > first.id) == (1, 0, True)
        assert (found.running, found.queued) == (2, 0)
        assert engine.generate([1, 2], SHORT, cache=False).tokens == expected
        answer.cancel()
        texts.result()
    assert engine.metrics.requests_by_kind["embedding"]["stop"] == 1
    assert engine.metrics.requests["stop"] == 1


def test_texts_in_the_background_slow_down_no_answer_of_higher_priority(engine: Engine) -> None:
    """One gap of nine between its steps has a batch of them; of those of its own priority, each has one."""
    engine.embed("a")
    batches: dict[int, int] = {}
    hand_in_texts, fed = EmbeddingCall.feed, threading.Event()

    def feed(call: EmbeddingCall[Any]) -> None:
        hand_in_texts(call)
        fed.set()

    for priority in (1, 0):
        with ThreadPoolExecutor(1) as pool:
            with held(engine), patch.object(EmbeddingCall, "feed", feed):
                texts = pool.submit(engine.embed, MANY)
                assert fed.wait(30)
                fed.clear()
                done: list[int] = []
                params = SamplingParams(temperature=0, max_tokens=90, logit_bias=NO_END)
                answer = engine.submit(
                    [1], params, priority=priority, draft="off",
                    # Called by the engine's thread for each token: this one may come late, when more batches are done.
                    logits_processors=[lambda ids, logits, done=done: done.append(engine.metrics.embed_batches)],
                )  # fmt: skip
            answer.result()
            batches[priority] = done[-1] - done[0]
            assert texts.result().shape == (len(MANY), 64)
    assert 5 <= batches[1] <= 15
    assert batches[0] > 70


def test_a_call_whose_texts_come_slowly_is_late_in_time(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine has nothing to do meanwhile, and notices all the same."""
    tokenizer = engine._loaded.tokenizer
    encode, submit, requests, n_texts = tokenizer.encode, engine._engine_thread.submit, [], 0

    def noted(request: Any) -> None:
        requests.append(request)
        submit(request)

    def slow(text: str, **options: Any) -> list[int]:
        nonlocal n_texts
        n_texts += 1
        if n_texts % 3 == 0:
            eventually(lambda: requests[-1].channel.ended)
        return encode(text, **options)

    monkeypatch.setattr(tokenizer, "encode", slow)
    monkeypatch.setattr(engine._engine_thread, "submit", noted)
    for call in (
        lambda: engine.embed(["a"] * 2_000, timeout=0.1),
        lambda: asyncio.run(engine.aembed(["a"] * 2_000, timeout=0.1)),
    ):
        with pytest.raises(DeadlineError):
            call()
    assert n_texts == 2 * 3, "the rest is not tokenized"
    assert engine.metrics.embed_batches == 0
    assert engine.metrics.requests["deadline"] == 2


def test_texts_in_segments(engine: Engine) -> None:
    alone = engine.embed("a thing")
    np.testing.assert_allclose(engine.embed([Text("a thing")]), alone, atol=1e-4)
    found = engine.embed([[Tokens(engine.tokenize("a thing"))], [Text("a "), Text("thing")]])
    np.testing.assert_allclose(found[0], alone, atol=1e-4)
    assert asyncio.run(engine.aembed([Text("a "), Text("thing")])).shape == (64,)
    told = engine.embeddings([[Text("<|end|>", parse_special=special)] for special in (False, True)])
    assert told[0].prompt_tokens >= told[1].prompt_tokens
    with pytest.raises(UnsupportedInputError):
        engine.embed([Text("a"), Media(b"")])
