"""BatchMethods: what an Engine offers for prompts by the thousands."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ollama_engine.config import EngineConfig
    from ollama_engine.runner.bulk.answer import BatchAnswer
    from ollama_engine.runner.bulk.answering import OnError
    from ollama_engine.runner.chat.options import ChatKeywords
    from ollama_engine.runner.load.loading import Loaded
    from ollama_engine.sample import SamplingParams

__all__ = ["BatchMethods"]


class BatchMethods:
    """Any number of prompts, answered in order as they are taken."""

    if TYPE_CHECKING:

        def _open(self) -> Loaded:
            """The model. Raises ClosedError."""

        @property
        def config(self) -> EngineConfig:
            """The options."""

    def map_batches(
        self, prompts: Iterable[Any], params: SamplingParams | None = None, *,
        checkpoint: str | os.PathLike[str] | None = None, on_error: OnError = "raise", **options: Unpack[ChatKeywords],
    ) -> Generator[BatchAnswer, None, None]:  # fmt: skip
        """The answers to any number of prompts, in their order; prompts are taken from the iterable as they are needed.

        A prompt is what `generate` takes, or a list of messages, which `chat` takes. With `checkpoint`, a path, answers
        are kept in a file of JSON lines before they are returned. The same call with the same prompts goes on where one
        that was killed has ended: it returns the answers in the file, and computes the others.

        Args:
            prompts: what `generate` takes, or lists of messages.
            params: how tokens are chosen. A seed is that of each prompt.
            checkpoint: file of answers, made where it does not exist.
            on_error: "raise", or "keep": a prompt that the model cannot take has an answer with an `error`.
            options: see `RequestKeywords` and `SamplingParams`; with messages also `ChatKeywords`.

        Closing the iterator cancels what is under way. Raises as `generate` and `chat` do; ConfigError for
        one prompt instead of several, and where the checkpoint is a folder, or of another model, of other parameters or
        prompts; EngineBusyError where another process writes it.
        """
        from ollama_engine.runner.bulk import answering  # noqa: PLC0415 (json and OpenSSL: few programs call this)

        answering.check_prompts(prompts)
        loaded = self._open()
        model = os.path.basename(loaded.path)
        chosen = loaded.defaults.params if params is None else params
        how: Any = answering.Answering(self, self.config.parallel, chosen, options, on_error)  # type: ignore[arg-type]
        if checkpoint is None:
            return answering.answered(how, enumerate(prompts))
        return answering.resumed(how, prompts, answering.Checkpoint(checkpoint, answering.job_of(model, how)))
