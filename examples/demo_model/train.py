"""Trains the demo model on freshly generated stories; no document is seen twice.

Run from `examples/`: `python -m demo_model.train --out ../build/demo_model`. The folder receives `tokenizer.json` and
`model.pt`; `python -m demo_model.export` turns them into the GGUF.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import asdict, dataclass
from itertools import islice
from math import cos, pi
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional as fn

from .batches import NOTHING, batches
from .documents import documents
from .measure import held_out_perplexity
from .model import DemoModel, Shape
from .tokens import train_tokenizer, weigh_tokens
from .world import WHO_AND_WHAT

WARMUP_STEPS = 100
FINAL_RATE = 0.02
"""The learning rate ends at this share of its peak."""
WEIGHT_OF_WHO_AND_WHAT = 3.0
"""How much more a name, a pronoun or a thing counts than another word: few tokens, but a wrong one spoils a story."""
STEPS_PER_LINE = 20
STEPS_PER_SAVE = 100


@dataclass(frozen=True)
class Stage:
    """One learning-rate schedule: tokens in all and per step, the peak rate, and the share of packed rows.

    `seed` is added to that of the command line: another one there goes on with documents that are new.
    """

    seed: int
    tokens: float
    batch: int
    rate: float
    packed: float


STAGES = {
    # Large noisy steps learn the sentences soon, but who is who only when the steps get small and rows hold one story.
    "sentences": Stage(seed=1_000_001, tokens=6.6e6, batch=2048, rate=2.5e-3, packed=1.0),
    "names": Stage(seed=1_000_005, tokens=4e6, batch=4096, rate=1e-3, packed=0.1),
}


def main() -> None:
    """Train tokenizer and network, save both, state the held-out perplexity."""
    args = _arguments()
    torch.manual_seed(args.seed)
    torch.set_num_threads(args.threads)
    args.out.mkdir(parents=True, exist_ok=True)
    model = DemoModel(Shape())
    tokenizer = _prepare(model, args)
    print(f"{sum(weight.numel() for weight in model.parameters()) / 1e6:.2f} M parameters", flush=True)
    for name in args.stages:
        print(f"stage {name}", flush=True)
        train(model, tokenizer, STAGES[name], args.out, seed=args.seed, minutes=args.minutes)
        save(model, args.out)
    print(held_out_perplexity(model, tokenizer, args.held_out_documents), flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for tokenizer.json and model.pt")
    parser.add_argument("--go-on", action="store_true", help="go on from the model in that folder")
    parser.add_argument("--stages", nargs="+", choices=STAGES, default=list(STAGES), help="(default: all)")
    parser.add_argument("--minutes", type=float, help="end each stage's schedule within this time")
    parser.add_argument("--seed", type=int, default=1, help="for the documents and the first weights")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--tokenizer-documents", type=int, default=20000)
    parser.add_argument("--held-out-documents", type=int, default=400)
    return parser.parse_args()


def _prepare(model: DemoModel, args: argparse.Namespace) -> Tokenizer:
    """Load what the folder holds, or train the tokenizer and leave the weights random."""
    if args.go_on:
        model.load_state_dict(torch.load(args.out / "model.pt", weights_only=True)["weights"])
        return Tokenizer.from_file(str(args.out / "tokenizer.json"))
    tokenizer = train_tokenizer(islice(documents(args.seed), args.tokenizer_documents), model.shape.n_vocab)
    tokenizer.save(str(args.out / "tokenizer.json"))
    return tokenizer


def save(model: DemoModel, folder: Path) -> None:
    """Write `model.pt`, whole or not at all."""
    torch.save({"shape": asdict(model.shape), "weights": model.state_dict()}, folder / "model.pt.new")
    (folder / "model.pt.new").replace(folder / "model.pt")


def train(
    model: DemoModel, tokenizer: Tokenizer, stage: Stage, folder: Path, *, seed: int, minutes: float | None
) -> None:
    """AdamW with warm-up and a cosine-shaped learning rate, until tokens or minutes are used up; saves now and then."""
    optimizer = _optimizer(model, stage.rate)
    weights = torch.tensor(weigh_tokens(tokenizer, WHO_AND_WHAT, WEIGHT_OF_WHO_AND_WHAT))
    stream = batches(tokenizer, seed + stage.seed, model.shape.n_ctx, stage.batch, stage.packed)
    started, step, tokens, done = time.monotonic(), 0, 0, 0.0
    while done < 1.0:
        rate = stage.rate * learning_rate(step, done)
        batch = next(stream)
        loss = _learn(model, batch, weights)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        _apply(optimizer, rate)
        step += 1
        tokens += int((batch[:, 1:] != NOTHING).sum())
        seconds = time.monotonic() - started
        done = max(tokens / stage.tokens, seconds / (60 * minutes) if minutes else 0.0)
        if step % STEPS_PER_LINE == 0:
            left = seconds * (1 - done) / done / 60
            print(
                f"step {step}  {tokens / 1e6:.2f} M tokens  loss {loss:.3f}  rate {rate:.1e}  "
                f"{tokens / seconds:.0f} tokens/s  {left:.1f} min left",
                flush=True,
            )
        if step % STEPS_PER_SAVE == 0:
            save(model, folder)


def _learn(model: DemoModel, batch: Tensor, weights: Tensor) -> float:
    """Add the gradients of one batch, `[rows, positions + 1]`; returns its mean loss in nats per token, weighted."""
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(batch[:, :-1].clamp(min=0))
    targets = batch[:, 1:].flatten()
    loss = fn.cross_entropy(logits.float().flatten(0, 1), targets, weight=weights, ignore_index=NOTHING)
    loss.backward()  # type: ignore[no-untyped-call]  # torch ships it untyped
    return loss.item()


def _apply(optimizer: torch.optim.Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def _optimizer(model: DemoModel, rate: float) -> torch.optim.Optimizer:
    """AdamW; only the layers' matrices decay, for decay would wear away the embeddings of rare tokens."""
    matrices = [weight for weight in model.blk.parameters() if weight.ndim == 2]
    others = [model.token_embd.weight, *(weight for weight in model.parameters() if weight.ndim == 1)]
    groups: list[dict[str, Any]] = [{"params": matrices}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.98), weight_decay=0.1, fused=True)


def learning_rate(step: int, done: float) -> float:
    """Share of the peak rate: linear warm-up, then half a cosine over `done`, the share of training behind us."""
    return min(1.0, (step + 1) / WARMUP_STEPS) * (FINAL_RATE + (1 - FINAL_RATE) * 0.5 * (1 + cos(pi * min(done, 1.0))))


if __name__ == "__main__":
    main()
