"""The cases of goldens.json, which has llama.cpp's answers: rows, chains, histories; see make_goldens.py."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain

import numpy as np

from ollama_engine.sample import SamplingParams
from tests.sample import rows
from tests.sample.rows import FloatRow, row

OFF = SamplingParams(temperature=1, top_k=0, top_p=1, seed=1)

ROWS: dict[str, FloatRow] = {
    "small": rows.gaussian(60, 2.0, seed=1),
    "one candidate": row([0.5]),
    "two": row([1.0, 3.0]),
    "ties": row(np.repeat([3.0, 2.0, 1.0, -1.0], [4, 3, 6, 20])),
    "holes": rows.holes(300, seed=2),
    "all at -inf but one": rows.one_above(200, 77),
    "peaked": rows.gaussian(5_000, 6.0, seed=3),
    "flat": rows.gaussian(700, 0.3, seed=4),
    "huge": rows.gaussian(128_256, 3.0, seed=5),
}

CHAINS: dict[str, SamplingParams] = {
    "top_k": replace(OFF, top_k=5, samplers="top_k"),
    "top_p": replace(OFF, top_p=0.55, samplers="top_p"),
    "top_p, min_keep": replace(OFF, top_p=0.1, min_keep=7, samplers="top_p"),
    "min_p": replace(OFF, min_p=0.07, samplers="min_p"),
    "min_p, min_keep": replace(OFF, min_p=0.95, min_keep=6, samplers="min_p"),
    "typ_p": replace(OFF, typical_p=0.33, samplers="typ_p"),
    "typ_p, most": replace(OFF, typical_p=0.87, samplers="typ_p"),
    "typ_p, min_keep": replace(OFF, typical_p=0.02, min_keep=9, samplers="typ_p"),
    "top_n_sigma": replace(OFF, top_n_sigma=1.1, samplers="top_n_sigma"),
    "top_n_sigma, wide": replace(OFF, top_n_sigma=2.6, samplers="top_n_sigma"),
    "xtc": replace(OFF, xtc_probability=1, xtc_threshold=0.06, samplers="xtc"),
    "xtc, low": replace(OFF, xtc_probability=1, xtc_threshold=0.013, samplers="xtc"),
    "xtc, min_keep": replace(OFF, xtc_probability=1, xtc_threshold=0.06, min_keep=58, samplers="xtc"),
    "temperature": replace(OFF, temperature=0.6, samplers="temperature"),
    "temperature 0": replace(OFF, temperature=0, samplers="temperature"),
    "dynatemp": replace(OFF, temperature=0.9, dynatemp_range=0.6, dynatemp_exponent=1.4, samplers="temperature"),
    "dynatemp, wide": replace(OFF, temperature=1, dynatemp_range=2.5, samplers="temperature"),
    "adaptive_p": replace(OFF, adaptive_target=0.3, samplers="min_p;adaptive_p", min_p=0.01),
    "the default order": replace(
        OFF, top_n_sigma=3, top_k=30, typical_p=0.97, top_p=0.9, min_p=0.02, xtc_probability=1, xtc_threshold=0.09,
        temperature=0.7, dynatemp_range=0.3, samplers="top_n_sigma;top_k;typ_p;top_p;min_p;xtc;temperature",
    ),
    "another order": replace(
        OFF, temperature=1.6, min_p=0.05, typical_p=0.9, top_k=12, xtc_probability=1, xtc_threshold=0.1,
        samplers="temperature;min_p;xtc;typ_p;top_k",
    ),
    "penalties": replace(
        OFF, repeat_penalty=1.3, repeat_last_n=20, presence_penalty=0.4, frequency_penalty=0.15, samplers="penalties"
    ),
    "penalties and more": replace(
        OFF, repeat_penalty=1.2, repeat_last_n=64, dry_multiplier=0.8, dry_sequence_breakers=(), dry_penalty_last_n=64,
        top_k=10, temperature=0.8, samplers="penalties;dry;top_k;temperature",
    ),
    "penalties last": replace(
        OFF, repeat_penalty=1.5, repeat_last_n=64, frequency_penalty=0.3, top_k=10, temperature=1.7,
        samplers="top_k;temperature;penalties",
    ),
}  # fmt: skip

NO_ENTROPY_OF_INFINITY = ("typ_p", "dynatemp", "adaptive_p", "the default order", "another order")
"""Chains for which llama.cpp is given the tokens above -inf only: others count for its entropy, or make it NaN."""


def history_of(n_vocab: int) -> list[int]:
    """Tokens that repeat each other, as an answer's may."""
    some = [i * 7 % n_vocab for i in range(11)]
    return [*some, *some[:5], *some[3:9], *some[:4]]


DRY: dict[str, SamplingParams] = {
    "plain": replace(OFF, dry_multiplier=0.8, dry_sequence_breakers=(), dry_penalty_last_n=400),
    "short window": replace(OFF, dry_multiplier=0.8, dry_sequence_breakers=(), dry_penalty_last_n=40),
    "long repetitions": replace(
        OFF, dry_multiplier=0.3, dry_base=1.3, dry_allowed_length=4, dry_sequence_breakers=(), dry_penalty_last_n=400
    ),
    "breakers": replace(OFF, dry_multiplier=0.5, dry_base=1.2, dry_allowed_length=1, dry_penalty_last_n=400),
    "long breakers": replace(
        OFF, dry_multiplier=0.5, dry_base=1.2, dry_penalty_last_n=400, dry_allowed_length=1,
        dry_sequence_breakers=("Once upon", " little girl", "day,", "the end.", "\n\n", "é", "zzz"),
    ),
}  # fmt: skip

TEXTS = (
    "Once upon a time, there was a little girl. Once upon a time, there was a little",
    "She said: yes. He said: yes. She said: no. He said: yes. She said",
    "One day, the dog ran. One day, the dog sat. One day, the",
    "a a a a a a a a a a a a a a a a a a a a a a a a",
    "the end. the end.\n\nthe end. the end.\n\nthe end. the end",
    "Tim and Sam went to the park. Tim and Sam went to the",
    'He saw "a big red ball" and "a big red ball" and "a big red',
    "no repetition here whatsoever",
    "",
)


def token_histories() -> list[list[int]]:
    """Token ids without text: few of them, so that they repeat in all ways."""
    source = random.Random(5)
    return [[source.randrange(300, 300 + kinds) for _ in range(n)] for kinds in (2, 3, 5) for n in (1, 30, 200)]


MIROSTAT = {
    "1": replace(OFF, mirostat=1, mirostat_tau=3.0, mirostat_eta=0.2),
    "1, cold": replace(OFF, mirostat=1, mirostat_tau=5.0, mirostat_eta=0.1, temperature=0.7),
    "2": replace(OFF, mirostat=2, mirostat_tau=3.0, mirostat_eta=0.2),
    "2, cold": replace(OFF, mirostat=2, mirostat_tau=1.5, mirostat_eta=0.5, temperature=0.7),
}
ADAPTIVE = {
    "target 0.3": replace(OFF, min_p=0.02, adaptive_target=0.3, adaptive_decay=0.8),
    "target 0.05": replace(OFF, min_p=0.001, adaptive_target=0.05, adaptive_decay=0.5),
    "target 1": replace(OFF, adaptive_target=1.0, adaptive_decay=0.95),
}
STEPS = 24


def step_rows() -> list[FloatRow]:
    return [rows.gaussian(400, 1.0 + step % 5, seed=100 + step) for step in range(STEPS)]


def names(params: SamplingParams) -> Sequence[str]:
    return tuple(chain.from_iterable(name.split(";") for name in params.samplers))
