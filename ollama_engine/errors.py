"""Every exception this package raises on purpose.

    EngineError
    ├── ConfigError             ValueError    an option is out of range, unknown, or contradicts another
    │   └── UnknownOptionError  TypeError     a keyword argument that is none; says which one may be meant
    ├── ModelFormatError        ValueError    the file is not a GGUF that can be read, or holds wrong tensors
    │   └── UnsupportedModelError             the file is sound, but its architecture or tokenizer is unknown here
    ├── TokenizerError          ValueError    text or ids that the vocabulary cannot take
    ├── ChatError               ValueError    messages that cannot be read, or that the chat template refuses
    ├── ImageError              ValueError    an image that cannot be read, or that the model cannot take
    ├── UnsupportedInputError   ValueError    an image for a model, or a call, that takes text only
    ├── GrammarError            ValueError    a schema or grammar that cannot be compiled, or became too complex
    ├── IncompleteError         ValueError    `parsed` of an answer that was cut off before it was whole
    ├── ShapeError              ValueError    a tensor operation got shapes, types or strides it cannot take
    ├── SamplingError           ValueError    logits that no token can be drawn from (NaN, or all -inf)
    ├── ContextOverflowError    ValueError    more tokens than the context holds
    ├── NoMemoryError           MemoryError   an allocation failed; carries the memory report
    ├── TargetExistsError       FileExistsError  a file to be written exists already
    ├── DeviceError             OSError       a device that does not exist or cannot be started
    ├── ComputeError            RuntimeError  ggml reported a failure while computing
    ├── EngineBusyError         RuntimeError  the queue is full, or a session in use; try again later
    ├── DeadlineError           TimeoutError  a request took longer than its timeout
    ├── SessionFormatError      ValueError    a session file that is damaged, or of another model or version
    ├── RegistryError           ConnectionError  a registry of models that cannot be reached, or refuses
    └── ClosedError             RuntimeError  the object was closed before

Each is also the builtin named beside it, so `except ValueError` keeps working. `http_status` is what a server
should answer when a request ends with it.

Messages and advice hold the options that they name as `Option`s. `str` writes those as Python keywords; a program whose
users set options in another way (flags, fields of a request) writes them with `EngineError.message`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = [
    "ChatError",
    "ClosedError",
    "ComputeError",
    "ConfigError",
    "ContextOverflowError",
    "DeadlineError",
    "DeviceError",
    "DeviceLostError",
    "EngineBusyError",
    "EngineError",
    "GrammarError",
    "ImageError",
    "IncompleteError",
    "LoadError",
    "ModelFormatError",
    "ModelNotFoundError",
    "ModelProcessError",
    "NoMemoryError",
    "Option",
    "RegistryError",
    "SamplingError",
    "SessionFormatError",
    "ShapeError",
    "TargetExistsError",
    "TokenizerError",
    "UnknownOptionError",
    "UnsupportedInputError",
    "UnsupportedModelError",
]


class Option(NamedTuple):
    """An option that a message names, alone or with the value that would help."""

    name: str
    value: str | float | None = None

    def __str__(self) -> str:
        if self.value is None:
            return self.name
        return f'{self.name}="{self.value}"' if isinstance(self.value, str) else f"{self.name}={self.value}"


Phrase = str | tuple[str | Option, ...]
"""Words, among them names of options."""


class EngineError(Exception):
    """Base of all errors raised by ollama_engine: what was expected and came, and `advice`, each a way out of it."""

    http_status = 500
    text_number: int | None = None
    """Number of the text, from 0, that the error is about; None where it is about no single text of a list."""

    def __init__(self, *parts: str | Option, advice: Iterable[Phrase] = ()) -> None:
        self.parts = parts
        self.advice = tuple(advice)
        super().__init__(self.message())

    @property
    def option(self) -> str | None:
        """The option whose value is wrong, if any: it is the one that the message begins with."""
        return self.parts[0].name if self.parts and isinstance(self.parts[0], Option) else None

    def message(self, write: Callable[[Option], str | None] = str) -> str:
        """The message. `write` spells an option, or returns None where users cannot set it: its advice is left out."""
        said = "".join(part if isinstance(part, str) else write(part) or str(part) for part in self.parts)
        ways = [way for phrase in self.advice if (way := _written(phrase, write)) is not None]
        return f"{said}; {_either(ways)}" if ways else said

    def behind(self, *where: str) -> Self:
        """The same error with `where` in front of its message."""
        return self._saying(*where, *self.parts)

    def replacing(self, old: str, new: str) -> Self:
        """The same error with a text in its message replaced, such as the name of a folder that no user knows."""
        return self._saying(*(part.replace(old, new) if isinstance(part, str) else part for part in self.parts))

    def _saying(self, *parts: str | Option) -> Self:
        error = type(self)(*parts, advice=self.advice)
        error.__dict__ |= {name: value for name, value in vars(self).items() if name not in ("parts", "advice")}
        error.args = (error.message(),)
        return error


def _written(phrase: Phrase, write: Callable[[Option], str | None]) -> str | None:
    words = [
        part if isinstance(part, str) else write(part) for part in ((phrase,) if isinstance(phrase, str) else phrase)
    ]
    return None if None in words else "".join(word for word in words if word is not None)


def _either(ways: list[str]) -> str:
    """One, "one or another", "one, another, or a third"."""
    if len(ways) < 3:
        return " or ".join(ways)
    return f"{', '.join(ways[:-1])}, or {ways[-1]}"


class ConfigError(EngineError, ValueError):
    """An option is out of range, unknown, or contradicts another."""

    http_status = 400


class UnknownOptionError(ConfigError, TypeError):
    """A keyword argument that the call does not take."""


class ModelFormatError(EngineError, ValueError):
    """The model file cannot be read: truncated, corrupted, or its tensors do not fit its metadata.

    `path` names the file that the message begins with, where that is known: a model may be loaded with a second one.
    """

    path: str | None = None


class UnsupportedModelError(ModelFormatError):
    """The file is sound, but this package does not know its architecture, tokenizer or tensor type."""


class TokenizerError(EngineError, ValueError):
    """Text that the vocabulary cannot express, or an id outside of it."""

    http_status = 400


class ChatError(EngineError, ValueError):
    """Messages, tools or a chat template that cannot be read, or messages that the template refuses."""

    http_status = 400


class ImageError(EngineError, ValueError):
    """An image, or another medium, that cannot be read, or that the model cannot take."""

    http_status = 400


class UnsupportedInputError(EngineError, ValueError):
    """An image for a model that reads text only, or for a call that takes none."""

    http_status = 400


class GrammarError(EngineError, ValueError):
    """A schema or grammar that cannot be compiled for this model, or has become too complex while an answer was made.

    `pointer` says where in a JSON schema (RFC 6901), `keyword` which of its keywords; None where neither is known.
    """

    http_status = 400

    def __init__(
        self, *parts: str | Option, advice: Iterable[Phrase] = (), pointer: str | None = None,
        keyword: str | None = None,
    ) -> None:  # fmt: skip
        self.pointer = pointer
        self.keyword = keyword
        super().__init__(*parts, advice=advice)


class IncompleteError(EngineError, ValueError):
    """The value of an answer that was cut off before its format was fulfilled."""


class ShapeError(EngineError, ValueError):
    """A tensor operation got shapes, types or strides that it cannot take. A programming error in a model."""


class SamplingError(EngineError, ValueError):
    """No token can be drawn from these logits."""


class ContextOverflowError(EngineError, ValueError):
    """More tokens than the context holds."""

    http_status = 400


class NoMemoryError(EngineError, MemoryError):
    """An allocation failed. `report` says what was planned for each device, or is None outside of loading."""

    def __init__(self, *parts: str | Option, advice: Iterable[Phrase] = (), report: object | None = None) -> None:
        self.report = report
        super().__init__(*parts, advice=advice)

    def message(self, write: Callable[[Option], str | None] = str) -> str:
        """The message, with the report below it."""
        said = super().message(write)
        return said if self.report is None else f"{said}\n{self.report}"


def short_of_memory(error: BaseException) -> NoMemoryError | None:
    """The error to raise for one of Python's that memory ran out: a MemoryError, or a file that cannot be mapped."""
    text = str(error)
    if isinstance(error, EngineError):
        return None
    if not isinstance(error, MemoryError) and not any(said in text for said in _NO_MEMORY):
        return None
    cause = text.strip().splitlines()[-1] if text.strip() else type(error).__name__
    return NoMemoryError(f"no memory: {cause}", advice=["let the process have more address space (ulimit -v)"])


@contextlib.contextmanager
def naming_no_memory() -> Iterator[None]:
    """Raise NoMemoryError for what Python raises where memory runs out: in an import that is put off, for example."""
    try:
        yield
    except (ImportError, MemoryError, OSError, SystemError) as error:
        if told := short_of_memory(error):
            raise told from error
        raise


_NO_MEMORY = (
    "failed to map segment",
    "cannot allocate memory",
    "Cannot allocate memory",
    "error return without exception set",
    "without setting an exception",
)
"""Out-of-memory texts of glibc's and musl's dynamic linkers, of errno, and of CPython out of memory for exceptions."""


class TargetExistsError(EngineError, FileExistsError):
    """A file to be written exists already, and is not replaced unless the caller says so."""


class DeviceError(EngineError, OSError):
    """A device that does not exist or cannot be started."""

    http_status = 503


class DeviceLostError(DeviceError):
    """A worker whose devices were in use is gone; what it held of a model, and its requests, are gone with it."""


class ComputeError(EngineError, RuntimeError):
    """The backend reported a failure while computing a graph."""


class ModelNotFoundError(EngineError, LookupError):
    """A model that is neither in the store nor anywhere else that was said."""

    http_status = 404


class LoadError(EngineError, RuntimeError):
    """A served model that could not be loaded; `__cause__` says why."""


class ModelProcessError(EngineError, RuntimeError):
    """The process that computed a model has ended, and its requests with it."""


class RegistryError(EngineError, ConnectionError):
    """A registry of models cannot be reached, refuses, or sends what is not what it says."""


class EngineBusyError(EngineError, RuntimeError):
    """As many requests as `max_queue` allows are waiting already, or a session is in use."""

    http_status = 503


class DeadlineError(EngineError, TimeoutError):
    """A request was not served within its timeout."""

    http_status = 504


class SessionFormatError(EngineError, ValueError):
    """A session file cannot be used: damaged, cut short, or of another model or version."""

    http_status = 400


class ClosedError(EngineError, RuntimeError):
    """The object was closed before this call."""
