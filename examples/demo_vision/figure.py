"""Draws held-out pictures with the model's answers, and the course of the training, as one PNG.

Run from `examples/`:
`python -m demo_vision.figure ../build/demo_vision ../tests/demo/seen.json demo_vision/answers.png`.
"""

from __future__ import annotations

import argparse
import csv
import json
import textwrap
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt

from .held_out import pictures, questions

ROWS, COLUMNS = 2, 5
STAGES = {
    "look": "pictures, no words", "words": "words, no pictures",
    "match": "tower to code", "practise": "more words",
    "speak": "all together",
}  # fmt: skip


def main() -> None:
    """Write the figure."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split(",", maxsplit=1)[0])
    parser.add_argument("folder", type=Path, help="what train.py wrote")
    parser.add_argument("answers", type=Path, help="what reference.py wrote")
    parser.add_argument("png", type=Path, help="the file to write")
    args = parser.parse_args()
    figure = plt.figure(figsize=(12, 9.6), layout="constrained")
    above, below = figure.subfigures(2, 1, height_ratios=[2.6, 1])
    show_answers(above, json.loads(args.answers.read_text())["answers"])
    show_training(below, args.folder)
    figure.savefig(args.png, dpi=70)


def show_answers(figure: Any, answers: list[list[str]]) -> None:
    """The first held-out pictures, each with its description and another question; wrong answers in red."""
    axes = figure.subplots(ROWS, COLUMNS).flat
    for number, (axis, (scene, image)) in enumerate(zip(axes, pictures(ROWS * COLUMNS), strict=True)):
        description, other = questions(scene, number)
        axis.imshow(image)
        axis.set_axis_off()
        right = [answers[number][0] == description.answer, answers[number][1] == other.answer]
        axis.set_title(_wrapped(answers[number][0]), fontsize=8, color="black" if right[0] else "red", loc="left")
        said = _wrapped(f"{other.question} {answers[number][1]}")
        axis.text(0, -0.04, said, transform=axis.transAxes, va="top", fontsize=8, color="black" if right[1] else "red")


def show_training(figure: Any, folder: Path) -> None:
    """Loss and share of held-out pictures without a mistake over the minutes of each stage."""
    for axis, (stage, what) in zip(figure.subplots(1, len(STAGES)), STAGES.items(), strict=True):
        rows = list(csv.DictReader((folder / f"{stage}.csv").open()))
        axis.semilogy([float(row["minutes"]) for row in rows], [float(row["loss"]) for row in rows], lw=0.8)
        axis.set_title(f"{stage}: {what}", fontsize=9)
        axis.set_xlabel("minutes")
        axis.set_ylabel("loss (nats)", color="tab:blue")
        measured = [(float(row["minutes"]), float(row["held_out"])) for row in rows if row["held_out"]]
        shares = axis.twinx()
        shares.plot([minute for minute, _ in measured], [share for _, share in measured], "o-", color="tab:green", ms=3)
        shares.set_ylim(0, 1.02)
        shares.set_ylabel("held-out right", color="tab:green")


def _wrapped(text: str) -> str:
    return "\n".join(textwrap.wrap(text, 38))


if __name__ == "__main__":
    main()
