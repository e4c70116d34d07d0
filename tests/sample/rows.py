"""Rows of logits that are easy to get wrong."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

FloatRow = npt.NDArray[np.float32]
BoolRow = npt.NDArray[np.bool_]
Bitmap = npt.NDArray[np.uint32]
LOWEST = np.finfo(np.float32).min
HIGHEST = np.finfo(np.float32).max
INF = np.float32(np.inf)


def row(values: object) -> FloatRow:
    return np.ascontiguousarray(values, dtype=np.float32)


def gaussian(n: int, scale: float, seed: int = 0) -> FloatRow:
    return row(np.random.default_rng(seed).standard_normal(n) * scale)


def one_above(n: int, token: int) -> FloatRow:
    x = np.full(n, -INF)
    x[token] = -3.0
    return row(x)


def quantised(n: int, step: float, seed: int = 0) -> FloatRow:
    return row(np.round(gaussian(n, 2.0, seed) / step) * step)


def holes(n: int, seed: int = 0) -> FloatRow:
    x = gaussian(n, 3.0, seed)
    x[np.random.default_rng(seed).random(n) < 0.5] = -INF
    return x


def hidden_spread(n: int) -> FloatRow:
    """The blocks that csrc/sample/dist.c samples to see how far a row spreads are level; most of the weight is in
    others.
    """
    x = gaussian(n, 0.3) - 1
    blocks = n // 64
    for block in range(0, blocks, blocks // 16 + 1):
        x[block * 64 : block * 64 + 64] = 0
    return row(x)


def bitmap(allowed: BoolRow) -> Bitmap:
    """Bit i % 32 of word i // 32 is set where allowed[i]; the bits behind the last token are 0."""
    whole = np.pad(allowed, (0, -len(allowed) % 32))
    return np.packbits(whole, bitorder="little").view("<u4").astype(np.uint32)


def some(n: int, share: float, seed: int = 0) -> BoolRow:
    return np.random.default_rng(seed).random(n) < share


ADVERSARIAL: dict[str, FloatRow] = {
    "one token": row([0.5]),
    "one token, huge": row([HIGHEST]),
    "two equal": row([1.0, 1.0]),
    "signed zeros": row([-0.0, 0.0, -0.0, 0.0, -1.0]),
    "one candidate": one_above(1000, 777),
    "one candidate, last of a whole block": one_above(128, 127),
    "all equal": row(np.zeros(5000)),
    "all equal but one": row(np.where(np.arange(5000) == 4999, 1.0, 0.0)),
    "few values, many ties": quantised(3000, 1.0),
    "ties across the cut": row(np.repeat([3.0, 2.0, 1.0], [10, 100, 40])),
    "huge values": row([HIGHEST, LOWEST, 0.0, HIGHEST, -1.0]),
    "sums that overflow to +inf": row(np.full(5000, HIGHEST)),
    "sums that overflow to -inf, then +inf": row(np.tile(np.repeat([LOWEST, -INF, HIGHEST], 64), 12)),
    "denormal values": row([1e-45, 2e-45, -1e-45, 0.0, 1e-40]),
    "ascending": row(np.linspace(-10, 10, 6000)),
    "descending": row(np.linspace(10, -10, 6000)),
    "holes": holes(7001),
    "peaked": gaussian(32000, 6.0),
    "flat": gaussian(32003, 0.1),
    "closer than a bin": row(1e-3 * np.random.default_rng(1).random(20000)),
    "closer than a rank": row(np.float32(1.0) + 1e-7 * np.random.default_rng(1).random(9000)),
    "shorter than the groups of its bound": gaussian(63, 2.0),
    "one row of the groups of its bound": gaussian(128, 2.0),
    "two rows of them, the last one short": quantised(191, 0.5),
    "best in the last, short row of groups": row(np.arange(1400) >= 1395),
    "of one rank, of two weights": row(5.9e-8 * np.random.default_rng(1).random(9000)),
    "two values": row(0.01 * (np.random.default_rng(1).random(20000) < 0.5)),
    "spread hidden from the sample": hidden_spread(20000),
    "mostly ties, beyond the list": quantised(20000, 4.0),
}
