"""Held-out perplexity: on documents whose (hero, thing) pairs training never saw."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from math import exp, log

import torch
from tokenizers import Tokenizer
from torch.nn import functional as fn

from .documents import SPECIAL_TOKENS, documents
from .model import DemoModel
from .tokens import encode_documents

HELD_OUT_SEED = 20250


@dataclass(frozen=True)
class Perplexity:
    """Perplexity per token, per word and per UTF-8 byte, and the number of tokens it was measured on."""

    token: float
    word: float
    byte: float
    n_tokens: int

    def __str__(self) -> str:
        bits = log(self.byte) / log(2)
        return (
            f"perplexity {self.token:.3f} per token, {self.word:.3f} per word, {self.byte:.4f} per byte "
            f"({bits:.4f} bits per byte) over {self.n_tokens} held-out tokens"
        )


@torch.no_grad()
def held_out_perplexity(model: DemoModel, tokenizer: Tokenizer, n_documents: int) -> Perplexity:
    """Score every token after the first of each held-out document, each document in its own context."""
    texts = list(islice(documents(HELD_OUT_SEED, held=True), n_documents))
    total, n_tokens = 0.0, 0
    model.eval()
    for ids in encode_documents(tokenizer, texts):
        row = torch.tensor(ids[: model.shape.n_ctx + 1])
        logits = model(row[None, :-1])[0].float()
        total += fn.cross_entropy(logits, row[1:], reduction="sum").item()
        n_tokens += len(row) - 1
    model.train()
    bare = [_bare(text) for text in texts]
    words = sum(len(text.split()) for text in bare)
    size = sum(len(text.encode()) for text in bare)
    return Perplexity(exp(total / n_tokens), exp(total / words), exp(total / size), n_tokens)


def _bare(text: str) -> str:
    for token in SPECIAL_TOKENS:
        text = text.replace(token, " ")
    return text
