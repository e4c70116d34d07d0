"""A check of the self-test, and how results are compared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ollama_engine.errors import EngineError

__all__ = ["Check", "Floats", "WrongResultError", "close", "equal", "same_bits"]

Floats = NDArray[np.float32]
PLAIN = "scalar"
"""Plain C, among the names of instruction sets."""


class WrongResultError(EngineError, ArithmeticError):
    """A result that differs from what it is compared with."""


@dataclass(frozen=True)
class Check:
    """Something that this installation must compute.

    Attributes:
        name: of its line.
        run: computes and compares; returns what was compared, raises WrongResultError.
        needs: a package that an installation may lack, without which it is not run; "" for none.
    """

    name: str
    run: Callable[[], str]
    needs: str = ""


def same_bits(results: Sequence[tuple[str, Floats]]) -> str:
    """Compare the results of kernels, (name, result) each, with that of plain C, which comes first.

    A result of fewer rows is compared with the first rows.
    """
    name, plain = results[0]
    if name != PLAIN:
        raise WrongResultError(f"expected the plain kernel first, got {name}")
    if not np.isfinite(plain).all():
        raise WrongResultError("plain C gives numbers that are not finite")
    names: dict[str, None] = {}
    for name, result in results[1:]:
        if result.tobytes() != plain[: len(result)].tobytes():
            worst = np.abs(result - plain[: len(result)]).max()
            raise WrongResultError(f"{name} differs from plain C by up to {worst:.3g}")
        if name != PLAIN:
            names[name] = None
    return f"{', '.join(names)}: the bits of plain C" if names else "plain C alone"


def close(name: str, result: Floats, expected: NDArray[np.float64], tolerance: float) -> None:
    """Compare with numpy's result; the tolerance is in its standard deviations."""
    worst = float(np.abs(result - expected).max() / expected.std())
    if not worst <= tolerance:
        raise WrongResultError(f"{name} differs from numpy by {worst:.3g} standard deviations, allowed are {tolerance}")


def equal(name: str, result: Any, expected: Any) -> None:
    """Compare with what is known."""
    if result != expected:
        raise WrongResultError(f"{name}: expected {expected!r}, got {result!r}")
