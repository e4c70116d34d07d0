"""Draws held-out pictures with the model's answers, as one PNG.

Run from `examples/`: `python -m demo_vision.figure ../tests/demo/seen.json demo_vision/answers.png`.
"""

from __future__ import annotations

import argparse
import json
import textwrap
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt

from .held_out import pictures, questions

ROWS = ("several", "alone")
COLUMNS = 5


def main() -> None:
    """Write the figure."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split(",", maxsplit=1)[0])
    parser.add_argument("answers", type=Path, help="what reference.py wrote")
    parser.add_argument("png", type=Path, help="the file to write")
    args = parser.parse_args()
    answers = json.loads(args.answers.read_text())
    figure = plt.figure(figsize=(12, 7), layout="constrained")
    for row, kind in zip(figure.subplots(len(ROWS), COLUMNS), ROWS, strict=True):
        show_answers(row, kind, answers[kind]["answers"])
    figure.savefig(args.png, dpi=70)


def show_answers(axes: Any, kind: str, answers: list[list[str]]) -> None:
    """The first pictures of a kind, each with its description and another question; wrong answers in red."""
    for number, (axis, (scene, image)) in enumerate(zip(axes, pictures(kind, COLUMNS), strict=True)):
        description, other = questions(scene, number)
        axis.imshow(image)
        axis.set_xticks([])
        axis.set_yticks([])  # the frame stays: some grounds are white
        right = [answers[number][0] == description.answer, answers[number][1] == other.answer]
        axis.set_title(_wrapped(answers[number][0]), fontsize=8, color="black" if right[0] else "red", loc="left")
        said = _wrapped(f"{other.question} {answers[number][1]}")
        axis.text(0, -0.04, said, transform=axis.transAxes, va="top", fontsize=8, color="black" if right[1] else "red")


def _wrapped(text: str) -> str:
    return "\n".join(textwrap.wrap(text, 38))


if __name__ == "__main__":
    main()
