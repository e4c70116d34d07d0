"""The clients of a soak: threads and asyncio tasks that ask at random, cut off, wait too briefly, and compare."""

from __future__ import annotations

import asyncio
import random
import tempfile
import threading
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from bench.soak.questions import PROMPTS, Conversation, Question, Script
from ollama_engine import Engine
from ollama_engine.errors import DeadlineError, EngineBusyError

BRIEF = 0.02
"""Longest of the timeouts and delays before a cancellation, in seconds."""


class Tally:
    """Counts of what has happened, by kind of call, and a list of what should not have."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.calls: Counter[str] = Counter()
        self.compared: Counter[str] = Counter()
        self.cut: Counter[str] = Counter()
        self.faults: list[str] = []

    def add(self, kind: str, *, compared: bool = False, cut: bool = False) -> None:
        with self._lock:
            self.calls[kind] += 1
            self.compared[kind] += compared
            self.cut[kind] += cut

    def fault(self, text: str) -> None:
        with self._lock:
            self.faults.append(text)


class Clients:
    """All of them. `stop` is looked at between two calls."""

    def __init__(
        self, questions: list[Question], chats: list[Conversation], scripts: list[Script], tally: Tally
    ) -> None:
        self.questions, self.chats, self.scripts, self.tally = questions, chats, scripts, tally
        self.stop = threading.Event()
        self.embedded: dict[str, Any] = {}
        self.folder = Path(tempfile.mkdtemp(prefix="soak-"))
        self.actions: tuple[Callable[[random.Random], None], ...] = (
            self.ask, self.ask, self.stream, self.late, self.cancelled, self.several, self.forked, self.session,
            self.session, self.chat, self.embed, self.load_cycle,
        )  # fmt: skip

    def learn(self) -> None:
        """Ask everything alone."""
        for known in (*self.questions, *self.chats, *self.scripts):
            _ = known.alone
        engine = self.questions[0].engine
        self.embedded = {text: engine.embed(text) for text in PROMPTS}

    # -- threads -------------------------------------------------------------------------------------------------------

    def run(self, seed: int) -> None:
        """A thread's life."""
        rng = random.Random(seed)
        while not self.stop.is_set():
            action = rng.choice(self.actions)
            try:
                action(rng)
            except EngineBusyError:
                self.tally.add("refused, too many wait")
            except Exception:
                self.tally.fault(f"{action.__name__}: {traceback.format_exc()}")

    def same(self, kind: str, got: object, alone: object, *, cut: bool = False) -> None:
        self.tally.add(kind, compared=True, cut=cut)
        if got != alone:
            self.tally.fault(f"{kind}: got {got!r}, alone {alone!r}")

    def ask(self, rng: random.Random) -> None:
        question = rng.choice(self.questions)
        found = question.engine.generate(question.prompt, question.params, **question.options)
        self.same(question.kind, (found.tokens, found.text), question.alone)

    def stream(self, rng: random.Random) -> None:
        question, most = rng.choice(self.questions), rng.randrange(1, 40)
        text = ""
        with question.engine.stream(question.prompt, question.params, **question.options) as stream:
            for n, chunk in enumerate(stream, 1):
                text += chunk.text
                if n == most:
                    break
        cut = n == most
        self.same("stream", text, question.alone[1][: len(text) if cut else None], cut=cut)

    def late(self, rng: random.Random) -> None:
        question = rng.choice(self.questions)
        try:
            answer = question.engine.generate(
                question.prompt, question.params, timeout=rng.random() * BRIEF + 1e-4, **question.options
            )
        except DeadlineError:
            self.tally.add("timeout", cut=True)
        else:
            self.same("timeout", (answer.tokens, answer.text), question.alone)

    def cancelled(self, rng: random.Random) -> None:
        question = rng.choice(self.questions)
        request = question.engine.submit(question.prompt, question.params, **question.options)
        for _ in range(rng.randrange(3)):
            next(request, None)
        request.cancel()
        self.tally.add("cancel", cut=True)

    def several(self, rng: random.Random) -> None:
        question = rng.choice(self.questions)
        first = question.engine.generate(question.prompt, question.params, n=2, **question.options)[0]
        self.same("n answers", (first.tokens, first.text), question.alone)

    def forked(self, rng: random.Random) -> None:
        question = rng.choice(self.questions)
        request = question.engine.submit(question.prompt, question.params, **question.options)
        for _ in range(rng.randrange(4)):
            next(request, None)
        fork = question.engine.fork(request)
        if rng.random() < 0.5:
            fork.cancel()
            self.tally.add("fork", cut=True)
        else:
            fork.result()
            self.tally.add("fork")
        found = request.result()
        self.same("forked", (found.tokens, found.text), question.alone)

    def session(self, rng: random.Random) -> None:
        """A session that may be saved and loaded, or forked, between two turns."""
        script, answers = rng.choice(self.scripts), []
        session = script.engine.session()
        try:
            for text in script.texts:
                answers.append(script.turn(session, text))
                chance = rng.random()
                if chance < 0.3:
                    path = self.folder / f"{threading.get_ident()}"
                    session.save(path, overwrite=True)
                    session.close()
                    session = script.engine.load_session(path)
                elif chance < 0.6:
                    session = self._forked_session(session)
        finally:
            session.close()
        self.same("session", tuple(answers), script.alone)

    @staticmethod
    def _forked_session(session: Any) -> Any:
        fork = session.fork()
        session.close()
        return fork

    def chat(self, rng: random.Random) -> None:
        chat = rng.choice(self.chats)
        found = chat.engine.chat(chat.messages, chat.params)
        self.same("chat", str(found.message.content), chat.alone)

    def embed(self, rng: random.Random) -> None:
        text = rng.choice(PROMPTS)
        engine = self.questions[0].engine
        self.tally.add("embedding", compared=True)
        if not np.allclose(engine.embed(text), self.embedded[text], atol=1e-3):
            self.tally.fault(f"embedding of {text!r} differs by more than 0.001")

    def load_cycle(self, rng: random.Random) -> None:
        """An Engine of its own for a single question: now and then, because it takes all of a model's memory."""
        if rng.random() > 0.3:
            return
        question = rng.choice([q for q in self.questions if q.kind == "text"])
        with Engine(question.engine.info.path, num_ctx=512, threads=1) as engine:
            found = engine.generate(question.prompt, question.params)
        self.same("load cycle", (found.tokens, found.text), question.alone)

    # -- asyncio -------------------------------------------------------------------------------------------------------

    def run_loop(self, seed: int, n: int) -> None:
        """A thread's life with an event loop of `n` tasks."""
        asyncio.run(self._all(seed, n))

    async def _all(self, seed: int, n: int) -> None:
        await asyncio.gather(*(self._task(random.Random(seed * 1000 + i)) for i in range(n)))

    async def _task(self, rng: random.Random) -> None:
        while not self.stop.is_set():
            try:
                await rng.choice((self.aask, self.astream, self.acancelled))(rng)
            except EngineBusyError:
                self.tally.add("refused, too many wait")
                await asyncio.sleep(0.01)
            except Exception:
                self.tally.fault(f"asyncio: {traceback.format_exc()}")

    async def aask(self, rng: random.Random) -> None:
        question = rng.choice(self.questions)
        found = await question.engine.agenerate(question.prompt, question.params, **question.options)
        self.same("asyncio", (found.tokens, found.text), question.alone)

    async def astream(self, rng: random.Random) -> None:
        question, most, text = rng.choice(self.questions), rng.randrange(1, 40), ""
        stream = question.engine.astream(question.prompt, question.params, **question.options)
        n = 0
        async for chunk in stream:
            text += chunk.text
            n += 1
            if n == most:
                break
        cut = n == most
        self.same("asyncio, stream", text, question.alone[1][: len(text) if cut else None], cut=cut)

    async def acancelled(self, rng: random.Random) -> None:
        question = rng.choice(self.questions)
        task = asyncio.ensure_future(question.engine.agenerate(question.prompt, question.params, **question.options))
        await asyncio.sleep(rng.random() * BRIEF)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        self.tally.add("asyncio, cancelled", cut=True)
