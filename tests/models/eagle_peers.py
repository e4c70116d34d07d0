"""Heads whose guesses llama.cpp has made, too: their files, and the guesses of a whole answer.

Its Llama gives a head no state behind the last block, so the one that reads it reads another block here. Its heads have
no norms or biases of queries and keys, and no more blocks than one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypedDict

from ollama_engine import SamplingParams
from tests.models import eagle_heads, families
from tests.support.mmproj import changed

__all__ = ["AHEAD", "FILE", "HEADS", "PARAMS", "TEXT", "PeerAnswer", "files"]

FILE = Path(__file__).parent / "eagle_peer_goldens.json"
HEADS: Mapping[str, Sequence[int]] = {
    "eagle3-llama": (1, 2, 2), "eagle3-authors": (1, 1, 2), "eagle3-llama3": (1, 2, 2),
}  # fmt: skip
"""The model's blocks that each reads."""
TEXT, AHEAD = "One day, a little cat", 3
PARAMS = SamplingParams(temperature=0, max_tokens=60, logit_bias=families.BANNED)


class PeerAnswer(TypedDict):
    """What llama.cpp answers."""

    answer: list[int]
    guesses: dict[str, list[int]]
    """Behind so many tokens of prompt and answer, each guess behind the one before."""


def files(name: str, folder: Path) -> tuple[Path, Path]:
    """The files of a model and of its head."""
    case = next(case for case in eagle_heads.cases() if case.name == name)
    model = families.converted(case.family, folder)
    head = eagle_heads.converted(case, folder, model)
    return model, changed(head, folder / "head.gguf", {"eagle3.target_layers": list(HEADS[name])}, {})
