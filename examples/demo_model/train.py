"""Trains the demo model on freshly generated stories; no document is seen twice.

Run from `examples/`: `python -m demo_model.train --out ../build/demo_model`. The folder receives `tokenizer.json` and
`model.pt`; `python -m demo_model.export` turns them into the GGUF.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from itertools import islice
from math import cos, pi
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional as fn

from .documents import documents
from .measure import held_out_perplexity
from .model import DemoModel, Shape
from .tokens import encode_documents, train_tokenizer

WARMUP_STEPS = 100
FINAL_RATE = 0.02
"""The learning rate ends at this share of its peak."""


def main() -> None:
    """Train tokenizer and network, save both, state the held-out perplexity."""
    args = _arguments()
    torch.manual_seed(args.seed)
    torch.set_num_threads(args.threads)
    args.out.mkdir(parents=True, exist_ok=True)
    shape = Shape()
    tokenizer = train_tokenizer(islice(documents(args.seed), args.tokenizer_documents), shape.n_vocab)
    tokenizer.save(str(args.out / "tokenizer.json"))
    model = DemoModel(shape)
    print(f"{sum(weight.numel() for weight in model.parameters()) / 1e6:.2f} M parameters", flush=True)
    train(model, tokenizer, args)
    torch.save({"shape": asdict(shape), "weights": model.state_dict()}, args.out / "model.pt")
    print(held_out_perplexity(model, tokenizer, args.held_out_documents), flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for tokenizer.json and model.pt")
    parser.add_argument("--tokens", type=float, default=10e6, help="tokens to train on (default: %(default).0f)")
    parser.add_argument("--minutes", type=float, help="finish the learning-rate schedule within this time")
    parser.add_argument("--batch", type=int, default=2, help="rows of n_ctx tokens per step (default: %(default)s)")
    parser.add_argument("--rate", type=float, default=2.5e-3, help="peak learning rate (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--compile", action="store_true", help="fuse with torch.compile; needs a C++ compiler")
    parser.add_argument("--tokenizer-documents", type=int, default=20000)
    parser.add_argument("--held-out-documents", type=int, default=400)
    return parser.parse_args()


def train(model: DemoModel, tokenizer: Tokenizer, args: argparse.Namespace) -> None:
    """AdamW over packed rows, with warm-up and a cosine-shaped learning rate, until tokens or minutes are used up."""
    optimizer = _optimizer(model, args.rate)
    forward: Callable[[Tensor], Tensor] = torch.compile(model) if args.compile else model
    rows = packed_rows(tokenizer, args.seed, model.shape.n_ctx + 1)
    tokens_per_step = args.batch * model.shape.n_ctx
    started, step, done = time.monotonic(), 0, 0.0
    while done < 1.0:
        rate = args.rate * learning_rate(step, done)
        loss = _learn(forward, torch.stack(list(islice(rows, args.batch))))
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        _apply(optimizer, rate)
        step += 1
        tokens, seconds = step * tokens_per_step, time.monotonic() - started
        done = max(tokens / args.tokens, seconds / (60 * args.minutes) if args.minutes else 0.0)
        if step % 20 == 0:
            print(
                f"step {step}  {tokens / 1e6:.2f} M tokens  loss {loss:.3f}  rate {rate:.1e}  "
                f"{tokens / seconds:.0f} tokens/s  {seconds * (1 - done) / done / 60:.1f} min left",
                flush=True,
            )


def _learn(forward: Callable[[Tensor], Tensor], batch: Tensor) -> float:
    """Add the gradients of one batch, `[rows, n_ctx + 1]`; returns its mean loss in nats per token."""
    with torch.autocast("cpu", torch.bfloat16):
        logits = forward(batch[:, :-1])
    loss = fn.cross_entropy(logits.float().flatten(0, 1), batch[:, 1:].flatten())
    loss.backward()  # type: ignore[no-untyped-call]  # torch ships it untyped
    return loss.item()


def _apply(optimizer: torch.optim.Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def _optimizer(model: DemoModel, rate: float) -> torch.optim.Optimizer:
    matrices = [weight for weight in model.parameters() if weight.ndim == 2]
    gains = [weight for weight in model.parameters() if weight.ndim == 1]
    groups: list[dict[str, Any]] = [{"params": matrices}, {"params": gains, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.98), weight_decay=0.1, fused=True)


def learning_rate(step: int, done: float) -> float:
    """Share of the peak rate: linear warm-up, then half a cosine over `done`, the share of training behind us."""
    return min(1.0, (step + 1) / WARMUP_STEPS) * (FINAL_RATE + (1 - FINAL_RATE) * 0.5 * (1 + cos(pi * min(done, 1.0))))


def packed_rows(tokenizer: Tokenizer, seed: int, length: int) -> Iterator[Tensor]:
    """Documents end to end, cut into rows of `length` ids."""
    # Not the documents that the tokenizer was made from: those open the stream of the bare seed.
    stream = documents(seed + 1_000_000)
    buffer: list[int] = []
    while True:
        for ids in encode_documents(tokenizer, list(islice(stream, 64))):
            buffer += ids
        while len(buffer) >= length:
            yield torch.tensor(buffer[:length])
            del buffer[: length - 1]


if __name__ == "__main__":
    main()
