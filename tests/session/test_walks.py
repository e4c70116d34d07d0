"""Random walks over several sessions beside requests: each holds what a list holds, each answer is the lone one's."""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from ollama_engine import Engine, Session
from ollama_engine.errors import ContextOverflowError
from ollama_engine.runner.load import caches
from tests.support.mixed_model import mixed_llama
from tests.support.suite import slow_except
from tests.support.tiny import write_tiny_llama
from tests.support.tiny_answers import greedy

NUM_CTX = 64
STEPS = 60
PATIENCE = 50


@pytest.fixture(scope="module", params=["full", "mixed"])
def engines(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Engine, Engine]]:
    """The one that is walked in, and one to ask what is right. In both a pool of 256 cells for full layers."""
    folder = tmp_path_factory.mktemp("walk")
    options: dict[str, Any] = {"num_ctx": NUM_CTX, "batch_size": 16, "threads": 1, "kv_cache_type": "f32"}
    with ExitStack() as stack:
        if request.param == "mixed":
            stack.enter_context(patch.object(caches, "RESUME_TOKENS", 8))
            stack.enter_context(mixed_llama())
        path = write_tiny_llama(folder / "tiny.gguf", n_layer=3, seed=6).path
        walked = stack.enter_context(Engine(path, parallel=3, verify=True, **options))
        yield walked, stack.enter_context(Engine(path, parallel=1, **options))


class Walk:
    """Sessions, and the tokens that each must hold."""

    def __init__(self, engine: Engine, right: Engine, folder: Path, seed: int) -> None:
        self.engine, self.right, self.folder = engine, right, folder
        self.random = random.Random(seed)
        self.sessions: list[tuple[Session, list[int]]] = []
        self.refused: list[str] = []

    def step(self) -> None:
        moves = [self.open, self.append, self.append, self.generate, self.generate, self.stream, self.fork, self.rewind,
                 self.reload, self.close, self.ask]  # fmt: skip
        move = self.random.choice(moves if self.sessions else [self.open])
        try:
            move()
        except ContextOverflowError as error:
            self.refused.append(str(error))
        for session, tokens in self.sessions:
            assert session.tokens == tuple(tokens)

    def some(self) -> tuple[Session, list[int]]:
        return self.random.choice(self.sessions)

    def text(self) -> list[int]:
        # Few different beginnings, so that they are shared.
        return [self.random.randrange(4) + 1] * self.random.randrange(1, 25)

    def lone(self, tokens: list[int], n: int) -> tuple[int, ...]:
        return self.right.generate(tokens, greedy(n), cache=False).tokens

    def open(self) -> None:
        if len(self.sessions) < 6:
            self.sessions.append((self.engine.session(), []))

    def append(self) -> None:
        (session, tokens), new = self.some(), self.text()
        session.append(new)
        tokens += new

    def generate(self) -> None:
        session, tokens = self.some()
        if tokens:
            found = session.generate(greedy(6)).tokens
            assert found == self.lone(tokens, 6)
            tokens += found

    def stream(self) -> None:
        session, tokens = self.some()
        if tokens:
            with session.stream(greedy(10)) as chunks:
                for _, chunk in zip(range(self.random.randrange(4)), chunks, strict=False):
                    tokens += chunk.tokens

    def fork(self) -> None:
        if len(self.sessions) < 6:
            session, tokens = self.some()
            self.sessions.append((session.fork(), list(tokens)))

    def rewind(self) -> None:
        session, tokens = self.some()
        n = self.random.randrange(len(tokens) + 1)
        session.rewind(n)
        del tokens[len(tokens) - n :]

    def reload(self) -> None:
        at = self.random.randrange(len(self.sessions))
        session, tokens = self.sessions[at]
        session.save(self.folder / "saved", overwrite=True)
        loaded = self.engine.load_session(self.folder / "saved")
        session.close()
        self.sessions[at] = (loaded, tokens)

    def close(self) -> None:
        session, _ = self.sessions.pop(self.random.randrange(len(self.sessions)))
        session.close()

    def ask(self) -> None:
        prompt = self.text()
        for found in self.engine.generate(prompt, greedy(5), n=2):
            assert found.tokens == self.lone(prompt, 5)


@pytest.mark.parametrize("seed", slow_except(range(4), 0))
def test_sessions_hold_what_lists_hold(engines: tuple[Engine, Engine], tmp_path: Path, seed: int) -> None:
    walk = Walk(*engines, tmp_path, seed)
    for _ in range(STEPS):
        walk.step()
    for session, _ in walk.sessions:
        session.close()
    engines[0].generate([1], greedy(0))
    prefix_cache = engines[0]._core.cache_manager.prefix_cache
    assert not any(prefix_cache.pinned(sequence) for sequence in range(len(prefix_cache)))
    assert len(walk.refused) < STEPS / 2
    assert all("sessions" in told or "num_ctx" in told for told in walk.refused)


def test_threads_in_a_small_pool_end_or_say_why(engines: tuple[Engine, Engine], tmp_path: Path) -> None:
    """Each thread has its own sessions; together they want more cells than there are, shifts included."""
    engine = engines[0]

    def wander(seed: int) -> int:
        chance, session, refused = random.Random(seed), engine.session(), 0
        for _ in range(8):
            try:
                wander_on(engine, session, chance, tmp_path / str(seed))
            except ContextOverflowError:
                refused += 1
                session.rewind(len(session))
        session.close()
        return refused

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(wander, range(8), timeout=PATIENCE)) > 0
    engine.generate([1], greedy(0))
    engine._core.check()
    prefix_cache = engine._core.cache_manager.prefix_cache
    assert not any(prefix_cache.pinned(sequence) for sequence in range(len(prefix_cache)))


def wander_on(engine: Engine, session: Session, chance: random.Random, file: Path) -> None:
    session.append([chance.randrange(9) + 1] * chance.randrange(1, 40), on_overflow="shift")
    what = chance.randrange(5)
    if what == 0:
        next(session.stream(greedy(40), on_overflow="shift"))
    elif what == 1:
        with session.fork() as fork:
            fork.generate(greedy(30), on_overflow="shift", num_keep=2)
    elif what == 2:
        session.save(file, overwrite=True)
        with engine.load_session(file) as loaded:
            assert loaded.tokens == session.tokens
    elif what == 3:
        engine.generate([chance.randrange(9) + 1] * 30, greedy(60), on_overflow="shift", n=2)
    else:
        assert len(session.generate(greedy(12), on_overflow="shift").tokens) == 12
