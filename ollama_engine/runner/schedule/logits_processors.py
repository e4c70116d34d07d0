"""ProcessorChain: the logits processors of one generation, and the tokens that they are shown."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ollama_engine.errors import SamplingError
from ollama_engine.input import FloatArray, Int32Array
from ollama_engine.runner.request.options import LogitsProcessor
from ollama_engine.runner.schedule.row_readers import is_sound

__all__ = ["ProcessorChain"]


class ProcessorChain:
    """Calls processors in their order. `tokens`: int32 [n], the prompt."""

    def __init__(self, processors: Sequence[LogitsProcessor], tokens: Int32Array) -> None:
        self._processors = processors
        self._n = len(tokens)
        self._buffer = np.empty(2 * self._n + 64, np.int32)
        self._buffer[: self._n] = tokens

    def accept(self, token: int) -> None:
        """Take note of the token that has come."""
        if self._n == len(self._buffer):
            # The old one stays as it is, for processors that have kept a view of it.
            self._buffer = np.concatenate((self._buffer, np.empty_like(self._buffer)))
        self._buffer[self._n] = token
        self._n += 1

    def apply(self, row: FloatArray) -> None:
        """Change a row of logits, float32 [n_vocab], in place.

        Raises SamplingError, with what a processor raised as its cause, or for what it returned. Rows with NaN or
        +infinity are left to the sampler, which refuses them.
        """
        if not is_sound(row):
            return
        tokens = self._buffer[: self._n]
        tokens.flags.writeable = False
        for number, processor in enumerate(self._processors):
            try:
                returned = processor(tokens, row)
            except BaseException as error:  # SystemExit too: this is the engine's thread
                raise SamplingError(f"{_name(number, processor)} raised {error!r}") from error
            if returned is not None and returned is not row:
                _replace(row, returned, _name(number, processor))
            if not is_sound(row):
                raise SamplingError(f"{_name(number, processor)} left NaN or +infinity; -infinity bans a token")


def _replace(row: FloatArray, returned: object, name: str) -> None:
    """Put what a processor returned into the row."""
    try:
        with np.errstate(over="ignore"):
            logits = np.asarray(returned).astype(np.float32, casting="same_kind")
    except (TypeError, ValueError) as error:
        raise SamplingError(
            f"{name} returned {type(returned).__name__}: expected None or an array of logits"
        ) from error
    if logits.shape != row.shape:
        raise SamplingError(f"{name} returned logits of shape {list(logits.shape)}, expected {list(row.shape)}")
    row[:] = logits


def _name(number: int, processor: LogitsProcessor) -> str:
    called = getattr(processor, "__qualname__", type(processor).__qualname__)
    return f"logits_processors[{number}] ({called})"
