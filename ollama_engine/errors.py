"""Every exception this package raises on purpose.

    EngineError
    ├── ConfigError             ValueError    an option is out of range, unknown, or contradicts another
    ├── ModelFormatError        ValueError    the file is not a GGUF that can be read, or holds wrong tensors
    │   └── UnsupportedModelError             the file is sound, but its architecture or tokenizer is unknown here
    ├── TokenizerError          ValueError    text or ids that the vocabulary cannot take
    ├── ShapeError              ValueError    a tensor operation got shapes, types or strides it cannot take
    ├── SamplingError           ValueError    logits that no token can be drawn from (NaN, or all -inf)
    ├── ContextOverflowError    ValueError    more tokens than the context holds
    ├── NoMemoryError           MemoryError   an allocation failed; carries the memory report
    ├── DeviceError             OSError       a device that does not exist or cannot be started
    ├── ComputeError            RuntimeError  ggml reported a failure while computing
    ├── EngineBusyError         RuntimeError  the queue is full, or a session in use; try again later
    ├── DeadlineError           TimeoutError  a request took longer than its timeout
    ├── SessionFormatError      ValueError    a session file that is damaged, or of another model or version
    └── ClosedError             RuntimeError  the object was closed before

Each is also the builtin named beside it, so `except ValueError` keeps working. `http_status` is what a server
should answer when a request ends with it.
"""

from __future__ import annotations

__all__ = [
    "ClosedError",
    "ComputeError",
    "ConfigError",
    "ContextOverflowError",
    "DeadlineError",
    "DeviceError",
    "EngineBusyError",
    "EngineError",
    "ModelFormatError",
    "NoMemoryError",
    "SamplingError",
    "SessionFormatError",
    "ShapeError",
    "TokenizerError",
    "UnsupportedModelError",
]


class EngineError(Exception):
    """Base of all errors raised by ollama_engine."""

    http_status = 500
    text_number: int | None = None
    """Which text of a list the error is about, from 0; None where it is about no one of them."""


class ConfigError(EngineError, ValueError):
    """An option is out of range, unknown, or contradicts another."""

    http_status = 400


class ModelFormatError(EngineError, ValueError):
    """The model file cannot be read: truncated, corrupted, or its tensors do not fit its metadata."""


class UnsupportedModelError(ModelFormatError):
    """The file is sound, but this package does not know its architecture, tokenizer or tensor type."""


class TokenizerError(EngineError, ValueError):
    """Text that the vocabulary cannot express, or an id outside of it."""

    http_status = 400


class ShapeError(EngineError, ValueError):
    """A tensor operation got shapes, types or strides that it cannot take. A programming error in a model."""


class SamplingError(EngineError, ValueError):
    """No token can be drawn from these logits."""


class ContextOverflowError(EngineError, ValueError):
    """More tokens than the context holds."""

    http_status = 400


class NoMemoryError(EngineError, MemoryError):
    """An allocation failed. `report` says what was planned for each device, or is None outside of loading."""

    def __init__(self, message: str, report: object | None = None) -> None:
        super().__init__(message)
        self.report = report


class DeviceError(EngineError, OSError):
    """A device that does not exist or cannot be started."""


class ComputeError(EngineError, RuntimeError):
    """The backend reported a failure while computing a graph."""


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
