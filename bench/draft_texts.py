"""Requests for measurements of drafts: texts that repeat much, little or nothing."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ollama_engine.input import FloatArray, Int32Array

__all__ = ["KINDS", "N_TEXTS", "SERVED", "Text", "texts"]

ROOT = Path(__file__).resolve().parents[1]
N_TEXTS = 4
SERVED = ("schema", "code", "JSON", "quotations", "random")
"""Kinds that any server can be asked for: no logits processor writes them."""
KINDS = ("edit", *SERVED)

TOWNS = ("Oslo", "Lima", "Bern", "Cairo", "Quito", "Hanoi", "Turin", "Perth")
SCHEMA = {
    "type": "array", "minItems": 8, "maxItems": 8, "items": {
        "type": "object", "additionalProperties": False, "required": ["town", "museums", "airports", "parks"],
        "properties": {"town": {"type": "string", "maxLength": 12}}
        | {name: {"type": "integer", "minimum": 0, "maximum": 999} for name in ("museums", "airports", "parks")},
    },
}  # fmt: skip


@dataclass(frozen=True)
class Text:
    """A message, and how it is answered."""

    prompt: str
    sampling: dict[str, Any] = field(default_factory=lambda: {"temperature": 0.0})
    format: Any = None
    answer: str | None = None
    """The answer that is written whatever the model would write."""


def texts(kind: str) -> list[Text]:
    """The N_TEXTS texts of one of KINDS."""
    return MAKERS[kind]()


class Dictated:
    """A logits processor that has an answer of these tokens written. For one request."""

    def __init__(self, answer: Sequence[int]) -> None:
        self._answer = answer
        self._n_prompt: int | None = None

    def __call__(self, token_ids: Int32Array, logits: FloatArray) -> None:
        if self._n_prompt is None:
            self._n_prompt = len(token_ids)
        at = len(token_ids) - self._n_prompt
        if at < len(self._answer):
            logits[self._answer[at]] = 1e30


def _file(name: str, most: int) -> str:
    return (ROOT / f"ollama_engine/{name}.py").read_text(encoding="utf-8")[:most]


def _edits() -> list[Text]:
    """Files that are written again with a change, as an assistant for code does it.

    Models that are small enough to be had as packages make no such edits: so the answer is dictated. What verifies
    guesses is the model's own step, and guesses know nothing of it.
    """
    changes: list[tuple[str, Callable[[str], str], str]] = [
        ("closing", lambda code: code.replace("close", "shut"), "Rename `close` to `shut`."),
        ("lazy", lambda code: re.sub(r'\n *"""[^"]*"""(?=\n)', "", code), "Remove the docstrings of functions."),
        ("file_lock", lambda code: re.sub(r"(\n+)( *)(def \w+)", r"\1\2@traced\n\2\3", code), "Decorate with @traced."),
        ("new_file", lambda code: re.sub(r"(\w+): (?:str|Path)\b", r"\1", code), "Drop annotations str and Path."),
    ]
    return [
        Text(f"{wish} Write the whole file.\n```python\n{code}\n```", answer=f"```python\n{change(code)}\n```")
        for name, change, wish in changes
        for code in (_file(name, 1600),)
    ]


def _code(sampling: dict[str, Any] | None = None) -> list[Text]:
    """Functions of this package, to be written again; what comes is the model's."""
    asked = "Write this Python code again with the function names in upper case"
    prompts = [
        f"{asked}:\n```python\n{_file(name, 1200)}\n```" for name in ("new_file", "file_lock", "closing", "lazy")
    ]
    return [
        Text(prompt) if sampling is None else Text(prompt, sampling | {"seed": i}) for i, prompt in enumerate(prompts)
    ]


def _records(form: object = None) -> list[Text]:
    """Lines to be made JSON of."""
    lines = [f"{town} has {7 * i + 3} museums, {i + 2} airports and {90 + i} parks." for i, town in enumerate(TOWNS)]
    asked = "Make a JSON list of this, with the keys town, museums, airports and parks:\n"
    return [Text(asked + "\n".join(lines[i:] + lines[:i]), format=form) for i in range(0, 8, 2)]


def _quotations() -> list[Text]:
    """Pages of the docs, to be summed up with quotations."""
    pages = [
        (ROOT / f"docs/{name}.md").read_text(encoding="utf-8")[:1500]
        for name in ("sessions", "embeddings", "images", "ray")
    ]
    return [Text(f"Sum up this text. Quote whole sentences of it:\n{page}") for page in pages]


MAKERS: dict[str, Callable[[], list[Text]]] = {
    "edit": _edits,
    "schema": lambda: _records(SCHEMA),
    "code": _code,
    "JSON": _records,
    "quotations": _quotations,
    "random": lambda: _code({"temperature": 2.0, "top_p": 1.0}),
}
