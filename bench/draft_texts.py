"""Requests for measurements of drafts: texts that repeat much, little or nothing."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ollama_engine.input import FloatArray, Int32Array

__all__ = ["KINDS", "QUESTIONS", "Text", "texts"]

ROOT = Path(__file__).resolve().parents[1]
KINDS = ("edit", "schema", "code", "JSON", "quotations", "random")
QUESTIONS = (
    "Name three colours and what they remind you of.", "Explain how a bicycle works.", "Write a short poem about rain.",
    "What is the capital of France, and why?", "Give me a recipe for soup.", "Tell me about the moon.",
    "How do bees make honey?", "Describe a day at the sea.",
)  # fmt: skip
"""What is answered without a text to repeat: for draft models."""

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
    answer: str | Sequence[int] | None = None
    """The answer that is written whatever the model would write, or its tokens."""


def texts(kind: str) -> list[Text]:
    """The texts of one of KINDS, all different."""
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

    def renamed(old: str, new: str) -> Callable[[str], tuple[str, str]]:
        return lambda code: (f"Rename `{old}` to `{new}`.", code.replace(old, new))

    def bare(code: str) -> tuple[str, str]:
        return "Remove the docstrings of functions.", re.sub(r'\n *"""[^"]*"""(?=\n)', "", code)

    def traced(code: str) -> tuple[str, str]:
        return "Decorate with @traced.", re.sub(r"(\n+)( *)(def \w+)", r"\1\2@traced\n\2\3", code)

    def loose(code: str) -> tuple[str, str]:
        return "Drop annotations str and Path.", re.sub(r"(\w+): (?:str|Path)\b", r"\1", code)

    changes = {
        "closing": renamed("close", "shut"), "lazy": bare, "file_lock": traced, "new_file": loose,
        "async_tasks": renamed("task", "job"), "segments": bare, "child_process": traced, "architectures": loose,
    }  # fmt: skip
    return [
        Text(f"{wish} Write the whole file.\n```python\n{code}\n```", answer=f"```python\n{change}\n```")
        for name, changed in changes.items()
        for code in (_file(name, 1600),)
        for wish, change in (changed(code),)
    ]


def _code(sampling: dict[str, Any] | None = None) -> list[Text]:
    """Functions of this package, to be written again; what comes is the model's."""
    asked = "Write this Python code again with the function names in upper case"
    names = ("new_file", "file_lock", "closing", "lazy", "async_tasks", "segments", "child_process", "option_names")
    prompts = [f"{asked}:\n```python\n{_file(name, 1200)}\n```" for name in names]
    return [
        Text(prompt) if sampling is None else Text(prompt, sampling | {"seed": i}) for i, prompt in enumerate(prompts)
    ]


def _records(form: object = None) -> list[Text]:
    """Lines to be made JSON of."""
    lines = [f"{town} has {7 * i + 3} museums, {i + 2} airports and {90 + i} parks." for i, town in enumerate(TOWNS)]
    asked = "Make a JSON list of this, with the keys town, museums, airports and parks:\n"
    return [Text(asked + "\n".join(lines[i:] + lines[:i]), format=form) for i in (0, 2, 4, 6, 1, 3, 5, 7)]


def _quotations() -> list[Text]:
    """Pages of the docs, to be summed up with quotations."""
    pages = [
        (ROOT / f"docs/{name}.md").read_text(encoding="utf-8")[:1500]
        for name in ("sessions", "embeddings", "images", "ray", "convert", "scoring", "requests", "gpu")
    ]
    return [Text(f"Sum up this text. Quote whole sentences of it:\n{page}") for page in pages]


MAKERS: dict[str, Callable[[], list[Text]]] = {
    "edit": _edits,
    "schema": lambda: _records(SCHEMA),
    "code": _code,
    "JSON": _records,
    "quotations": _quotations,
    "questions": lambda: [Text(question) for question in QUESTIONS],
    "random": lambda: _code({"temperature": 2.0, "top_p": 1.0}),
}
