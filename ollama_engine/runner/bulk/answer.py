"""BatchAnswer: the answer to one prompt of many, as it is returned and as a checkpoint keeps it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ollama_engine.errors import EngineError
from ollama_engine.runner.request.results import Usage

__all__ = ["BatchAnswer", "prompt_digest"]


@dataclass(frozen=True, slots=True)
class BatchAnswer:
    """The answer to one prompt.

    Attributes:
        key: the prompt's key: its number from 0, or its value in the caller's column.
        text: text of the answer; "" where there is none.
        finish_reason: "stop", "length" or "tool_calls" (see `Completion` and `ChatResult`); "error" where there is no
            answer.
        prompt_tokens: tokens of the prompt.
        completion_tokens: tokens of the answer.
        error: the error's text where there is no answer; None where there is one.
    """

    key: int | str
    text: str
    finish_reason: str
    prompt_tokens: int = 0
    completion_tokens: int = 0
    error: str | None = None

    @classmethod
    def of(cls, key: int | str, text: str, finish_reason: str, usage: Usage) -> BatchAnswer:
        """The answer of a request that has ended."""
        return cls(key, text, finish_reason, usage.prompt_tokens, usage.completion_tokens)

    @classmethod
    def refused(cls, key: int | str, error: EngineError) -> BatchAnswer:
        """The answer to a prompt that the model cannot take: its error."""
        return cls(key, "", "error", error=str(error))

    def line(self, digest: str) -> bytes:
        """A line of a checkpoint."""
        return json.dumps({**asdict(self), "prompt": digest}, separators=(",", ":")).encode() + b"\n"

    @classmethod
    def read(cls, line: bytes) -> tuple[BatchAnswer, str]:
        """The answer in a line, and the digest of its prompt. Raises ValueError for what is no such line."""
        try:
            found: Any = json.loads(line)
        except ValueError:
            found = None
        if not isinstance(found, Mapping) or "prompt" not in found:
            raise ValueError(f"{line[:80]!r} is no answer")
        fields = dict(found)
        digest: str = fields.pop("prompt")
        try:
            return cls(**fields), digest
        except TypeError as error:
            raise ValueError(f"{line[:80]!r} is no answer: {error}") from None


def prompt_digest(prompt: object) -> str:
    """A prompt's hash, 16 hexadecimal digits. Objects in it count by their `repr`."""
    if isinstance(prompt, str):
        written = prompt.encode("utf-8", "surrogatepass")
    else:
        plain = prompt.tolist() if hasattr(prompt, "tolist") else prompt
        written = json.dumps(plain, sort_keys=True, default=repr).encode()
    return hashlib.blake2b(written, digest_size=8).hexdigest()
