"""Submission: where requests of an engine are handed in, alone or several at once; sessions hand in theirs here too."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Protocol, TypeVar

from ollama_engine.errors import ConfigError
from ollama_engine.input import FloatArray
from ollama_engine.runner.core.engine_thread import EngineThread
from ollama_engine.runner.core.input_processor import new_generation, new_scoring, prompt_inputs
from ollama_engine.runner.load.loading import Loaded
from ollama_engine.runner.prefix.pinned_prefix import PinnedPrefix
from ollama_engine.runner.request.options import RequestKeywords, RequestOptions
from ollama_engine.runner.request.prompts import (
    SEVERAL,
    Prompt,
    Prompts,
    about_one,
    check_params,
    is_many,
    many,
    several,
)
from ollama_engine.runner.request.request import Request, RequestChannel
from ollama_engine.runner.schedule.inputs import Inputs
from ollama_engine.runner.schedule.sequence import Generation
from ollama_engine.sample import SamplingParams

if TYPE_CHECKING:
    from ollama_engine.runner.embed.submission import EmbedSubmission

__all__ = ["Submission"]


class Handle(Protocol):
    """A caller's end of a request."""

    channel: RequestChannel


AnyHandle = TypeVar("AnyHandle", bound=Handle)


class Submission:
    """A loaded model and the loop that serves it. Knows no Engine, so that each can go before the other."""

    def __init__(self, loaded: Loaded, thread: EngineThread) -> None:
        self.loaded = loaded
        self.thread = thread
        # Before anybody changes the working directory.
        self._files = tuple(map(os.path.abspath, loaded.gguf.files))
        # A finaliser that runs in the middle of it may ask for embeddings too.
        self._making = threading.RLock()
        self._embeddings: EmbedSubmission | None = None

    @cached_property
    def fingerprint(self) -> str:
        """Of the model."""
        from ollama_engine.runner.session.fingerprint import fingerprint  # noqa: PLC0415 (OpenSSL, for session files only)

        return fingerprint(self.loaded.gguf, self._files)

    @property
    def embeddings(self) -> EmbedSubmission:
        """Where texts to embed are handed in, made when it is first asked for."""
        with self._making:
            if self._embeddings is None:
                from ollama_engine.runner.embed.submission import EmbedSubmission  # noqa: PLC0415 (asyncio, for who embeds only)

                self._embeddings = EmbedSubmission(self.loaded, self.thread, self.thread.monitor)
            return self._embeddings

    def inputs(self, prompt: Prompt, *, add_special: bool = True, several: str = SEVERAL) -> Inputs:
        """The inputs of a prompt. `several`: hint shown when several prompts are passed."""
        return prompt_inputs(self.loaded, prompt, add_special=add_special, several=several)

    def start(
        self, inputs: Inputs, params: SamplingParams, options: RequestOptions, channel: RequestChannel, *,
        follows: Generation | None = None,
    ) -> Generation:  # fmt: skip
        """Hand in one request. Raises what is wrong with it, and as `EngineThread.submit` does."""
        made = self.make(inputs, params, options, channel, follows=follows)
        self.thread.submit(made)
        return made

    def make(
        self, inputs: Inputs, params: SamplingParams, options: RequestOptions, channel: RequestChannel, *,
        follows: Generation | None = None, pinned: PinnedPrefix | None = None,
    ) -> Generation:  # fmt: skip
        """A request, to be handed to the loop. Raises what is wrong with it."""
        return new_generation(self.loaded, inputs, params, options, channel, follows=follows, pinned=pinned)

    def hand_in(self, request: Request, prompt: Prompt, params: SamplingParams, keywords: RequestKeywords) -> Request:
        """Start a request and give it back. Raises as `start` does."""
        try:
            request.inputs = inputs = self.inputs(prompt)
            request.generation = self.start(inputs, params, RequestOptions.of(keywords), request.channel)
            return request
        except BaseException:  # an interrupt may come when it is handed in
            request.channel.cancelled = True
            raise

    def logits(self, request: Request, prompt: Prompt) -> FloatArray:
        """See `Engine.logits`; by a request that is watched."""
        try:
            inputs = self.inputs(prompt, several="logits takes one prompt at a time")
            scoring = new_scoring(self.loaded, inputs, request.channel)
            self.thread.submit(scoring)
            next(request)
            return scoring.rows
        finally:
            request.channel.cancelled = True

    def start_all(
        self, handle: Callable[[], AnyHandle], prompt: Prompt | Prompts, params: SamplingParams, n: int | None,
        keywords: RequestKeywords,
    ) -> list[AnyHandle]:  # fmt: skip
        """`n` requests for each prompt, which share its cells: all of them, or none where one is refused."""
        options = RequestOptions.of(keywords)
        check_params(params)
        name = "prompts" if is_many(prompt) else None
        handles: list[AnyHandle] = []
        made: list[Generation] = []
        for number, each in enumerate(many(prompt)):
            with about_one(name, number):
                inputs, first = self.inputs(each), None
                for variant in several(params, n):
                    handles.append(handle())
                    made.append(self.make(inputs, variant, options, handles[-1].channel, follows=first))
                    first = first or made[-1]
        try:
            self.thread.submit(*made)
            return handles
        except BaseException:
            for one in made:
                one.channel.cancelled = True
            raise

    def fork(self, request: Request, params: SamplingParams | None, keywords: RequestKeywords) -> Request:
        """See `Engine.fork`."""
        source = request.generation
        assert source is not None
        assert request.inputs is not None
        inputs = request.inputs.with_tokens(request.tokens)
        fork = Request(request.engine, inputs)
        options = source.options.replaced(keywords)
        try:
            fork.generation = self.start(inputs, params or source.params, options, fork.channel, follows=source)
            return fork
        except BaseException:
            fork.channel.cancelled = True
            raise


def check_forkable(request: Request, engine: object) -> None:
    """Raise ConfigError for anything but a request of this engine."""
    if not isinstance(request, Request) or request.generation is None or request.engine is not engine:
        raise ConfigError("fork takes a Request that submit or fork of this Engine gave")
