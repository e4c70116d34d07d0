"""Trains the seeing demo model in stages; no picture is seen twice.

Run from `examples/`, the first two side by side if there are two cores, and so the next two:

    python -m demo_vision.train look --out ../build/demo_vision         the tower, from pictures without words
    python -m demo_vision.train words --out ../build/demo_vision        the text part, from words without pictures
    python -m demo_vision.train match --out ../build/demo_vision        the tower, to give what the text part reads
    python -m demo_vision.train practise --out ../build/demo_vision     the text part, with more noise
    python -m demo_vision.train speak --out ../build/demo_vision        both together
    python -m demo_vision.train match-again --out ../build/demo_vision  the tower, to give that more exactly
    python -m demo_vision.train tell --out ../build/demo_vision         the text part, with that tower
    python -m demo_vision.train drill --out ../build/demo_vision        the tower, from the pictures that are hardest
    python -m demo_vision.train drill-again --out ../build/demo_vision  the same at a lower rate
    python -m demo_vision.train settle --out ../build/demo_vision       both, from hard pictures and conversations

Two processes learn the last three faster than one, from other pictures, when each takes the mean of both weights every
now and then: copy the folder, and run the stage in both, with `--partner OTHER_FOLDER`, and `--seed 2` in one of them.

The folder receives `tokenizer.model`, and of each stage `STAGE.pt` (weights, optimizer and step: the same command goes
on from it) and `STAGE.csv` (the course of the loss).
"""

from __future__ import annotations

import argparse
import csv
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from math import cos, pi
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .batches import Batch, batches, drills
from .hardest import hardest
from .join import fit_code, fit_projection, join
from .losses import (
    drill_loss,
    drill_losses,
    look_loss,
    match_loss,
    practise_loss,
    settle_loss,
    settle_losses,
    speak_loss,
    tell_loss,
    words_loss,
)
from .measure import answered, seen
from .model import Seeing, gemma_config
from .tokens import IDS, hugging_face, train_tokenizer

WARMUP_STEPS = 100
FINAL_RATE = 0.02
"""The learning rate ends at this share of its peak."""
STEPS_PER_LINE, STEPS_PER_SAVE, STEPS_PER_MEASURE = 20, 20, 1000
COLUMNS = ("step", "minutes", "loss", "rate", "held_out")
PICTURES = 5_000_000
"""From those of one seed to those of the next."""
MANY = 10_000_000
"""From a stage's pictures to those of its conversations."""
DRAWN = 2
"""So many times as many pictures are drawn as are learnt from, where the hardest are."""
TALKS = 12
"""Conversations beside each batch of hard pictures."""


@dataclass(frozen=True)
class Stage:
    """What is learnt, from which pictures; peak rate, the number of the first picture, and the loss of a batch."""

    kind: str
    steps: int
    batch: int
    rate: float
    seed: int
    loss: Callable[[Seeing, Batch], Tensor]
    losses: Callable[[Seeing, Batch], Tensor] | None = None
    """Of each picture, where the hardest are learnt from."""


STAGES = {
    "look": Stage("look", steps=2000, batch=64, rate=2e-3, seed=10_000_000, loss=look_loss),
    "words": Stage("words", steps=1500, batch=32, rate=2e-3, seed=20_000_000, loss=words_loss),
    "match": Stage("match", steps=500, batch=64, rate=1e-3, seed=50_000_000, loss=match_loss),
    "practise": Stage("practise", steps=1500, batch=32, rate=1.5e-3, seed=60_000_000, loss=practise_loss),
    "speak": Stage("speak", steps=3000, batch=32, rate=5e-4, seed=30_000_000, loss=speak_loss),
    "match-again": Stage("match", steps=2000, batch=64, rate=1.5e-3, seed=80_000_000, loss=match_loss),
    "tell": Stage("speak", steps=1000, batch=48, rate=1e-3, seed=140_000_000, loss=tell_loss),
    "drill": Stage("drill", steps=410, batch=48, rate=6e-4, seed=340_000_000, loss=drill_loss, losses=drill_losses),
    "drill-again": Stage(
        "drill", steps=1100, batch=48, rate=2e-4, seed=400_000_000, loss=drill_loss, losses=drill_losses
    ),
    "settle": Stage("settle", steps=600, batch=32, rate=2e-4, seed=360_000_000, loss=settle_loss, losses=settle_losses),
}
STARTS = {
    "match": ("look", "words"), "practise": ("look", "words"), "speak": ("match", "practise"),
    "match-again": ("speak", "speak"), "tell": ("match-again", "match-again"), "drill": ("tell", "tell"),
    "drill-again": ("drill", "drill"), "settle": ("drill-again", "drill-again"),
}  # fmt: skip
"""Where a stage takes the tower and the text part from, which others start at random."""
FITS = {"match": fit_projection, "match-again": fit_code}
"""How tower and code are brought together at the start of a stage."""


def main() -> None:
    """Train one stage, or what is left of it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("stage", choices=STAGES)
    parser.add_argument("--out", type=Path, required=True, help="folder for all that is made")
    parser.add_argument("--steps", type=int, help="another number of steps for the stage")
    parser.add_argument("--rate", type=float, help="another peak rate")
    parser.add_argument("--seed", type=int, default=1, help="for the first weights, and which pictures are drawn")
    parser.add_argument("--partner", type=Path, help="folder of a run with another seed, to average weights with")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    torch.set_num_threads(args.threads)
    args.out.mkdir(parents=True, exist_ok=True)
    if not (args.out / "tokenizer.model").exists():
        train_tokenizer(args.out / "tokenizer.model")
    given = {name: value for name, value in (("steps", args.steps), ("rate", args.rate)) if value is not None}
    stage = replace(STAGES[args.stage], **given)
    stage = replace(stage, seed=stage.seed + (args.seed - 1) * PICTURES)
    Training(args.stage, args.out, stage, args.partner).run()


class Training:
    """The network with its optimizer, and how far a stage has come."""

    def __init__(self, name: str, folder: Path, stage: Stage, partner: Path | None = None) -> None:
        self.name, self.folder, self.stage = name, folder, stage
        self.partner, self.met = partner and partner / f"{name}.pt", time.time()
        self.model = Seeing(gemma_config(IDS))
        self.optimizer = _optimizer(self.model)
        self.step, self.minutes = 0, 0.0
        self.talks: Iterator[Batch] | None = None
        self.path = folder / f"{name}.pt"
        if self.path.exists():
            saved = torch.load(self.path, weights_only=True)
            self.model.load_state_dict(saved["weights"])
            self.optimizer.load_state_dict(saved["optimizer"])
            self.step, self.minutes = saved["step"], saved["minutes"]
        elif name in STARTS:
            tower, text = (folder / f"{before}.pt" for before in STARTS[name])
            join(self.model, tower, text)
            if name in FITS:
                FITS[name](self.model)

    def save(self) -> None:
        """Write the stage's file, whole or not at all."""
        state = {
            "weights": self.model.state_dict(), "optimizer": self.optimizer.state_dict(), "step": self.step,
            "minutes": self.minutes,
        }  # fmt: skip
        new = self.path.with_suffix(".new")
        torch.save(state, new)
        new.replace(self.path)

    def run(self) -> None:
        """Train what is left."""
        stage = self.stage
        stream = self._batches()
        started, before = time.monotonic(), self.minutes
        for batch in stream:
            if self.step >= self.stage.steps:
                break
            rate = stage.rate * learning_rate(self.step, self.step / self.stage.steps)
            loss = self._step(batch, rate)
            self.step += 1
            self.minutes = before + (time.monotonic() - started) / 60
            measured = self._measure() if self.step % STEPS_PER_MEASURE == 0 else None
            if self.step % STEPS_PER_LINE == 0:
                self._log(loss, rate, measured)
            if self.step % STEPS_PER_SAVE == 0:
                self.save()
                self._meet()
        self.save()

    @torch.no_grad()
    def _meet(self) -> None:
        """Take the mean of one's own weights and those that the partner has saved since the last time."""
        if self.partner and self.partner.exists() and (saved := self.partner.stat().st_mtime) > self.met:
            self.met, weights = saved, torch.load(self.partner, weights_only=True)["weights"]
            for name, weight in self.model.named_parameters():
                weight.lerp_(weights[name], 0.5)

    def _batches(self) -> Iterable[Batch]:
        stage, tokenizer = self.stage, self.folder / "tokenizer.model"
        if stage.losses is None:
            return batches(tokenizer, stage.seed + self.step * stage.batch, stage.batch, stage.kind)
        drawn = DRAWN * stage.batch
        first = stage.seed + self.step * drawn
        if stage.kind == "settle":
            self.talks = iter(batches(tokenizer, first + MANY, TALKS, "speak"))
        shown = drills(tokenizer, first, drawn)
        return hardest(self.model, shown, stage.losses, stage.batch, mirror=stage.kind == "drill")

    def _step(self, batch: Batch, rate: float) -> float:
        loss = self.stage.loss(self.model, batch)
        if self.talks is not None:
            loss = loss + speak_loss(self.model, next(self.talks))
        loss.backward()  # type: ignore[no-untyped-call]  # torch ships it untyped
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.item()

    def _measure(self) -> float:
        if self.stage.kind in ("look", "drill"):
            return seen(self.model, range(200))
        tokenizer = hugging_face(self.folder / "tokenizer.model")
        return answered(self.model, tokenizer, range(100), coded=self.stage.kind in ("words", "practise"))

    def _log(self, loss: float, rate: float, held_out: float | None) -> None:
        row = (self.step, round(self.minutes, 2), round(loss, 4), round(rate, 6), held_out)
        path = self.path.with_suffix(".csv")
        new = not path.exists()
        with path.open("a", newline="") as file:
            csv.writer(file).writerows([COLUMNS, row] if new else [row])
        said = "" if held_out is None else f"  held out {held_out:.3f}"
        print(f"{self.name} {self.step}/{self.stage.steps}  {self.minutes:.1f} min  loss {loss:.4f}{said}", flush=True)


def _optimizer(model: Seeing) -> torch.optim.Optimizer:
    """AdamW; only matrices decay, and embeddings do not."""
    named = list(model.named_parameters())
    matrices = [weight for name, weight in named if weight.ndim == 2 and "embed" not in name and "code" not in name]
    kept = {id(weight) for weight in matrices}
    others = [weight for _, weight in named if id(weight) not in kept]
    groups: list[dict[str, Any]] = [{"params": matrices}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.98), weight_decay=0.05, fused=True)


def learning_rate(step: int, done: float) -> float:
    """Share of the peak rate: linear warm-up, then half a cosine over `done`, the share of the stage behind us."""
    return min(1.0, (step + 1) / WARMUP_STEPS) * (FINAL_RATE + (1 - FINAL_RATE) * 0.5 * (1 + cos(pi * done)))


if __name__ == "__main__":
    main()
