"""Every set of kernels that this CPU can run gives the bits of the scalar one, which test_twin.py's twin checks too."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ollama_engine.errors import ConfigError, SamplingError
from ollama_engine.sample import Sampler, SamplingParams, sampler_instructions
from tests.sample import rows, twin
from tests.sample.rows import ADVERSARIAL, FloatRow
from tests.sample.test_statistics import CASES, DRAWS, LOGITS, chi_square, counts_of_rows, critical_value
from tests.sample.test_twin import CUTS, QUICK_CUTS
from tests.support.instruction_sets import SAMPLER, runnable
from tests.support.suite import scaled, slow_except

SETS = runnable(((name,) for name in SAMPLER), lambda _: sampler_instructions(), place=0)
OTHERS = SETS[1:]
LARGE = {
    "peaked": rows.gaussian(128_256, 10.0),
    "level": rows.gaussian(128_256, 1e-3),
    "equal": rows.row(np.zeros(128_256)),
    "steps": rows.quantised(128_257, 0.25),
    "holes": rows.holes(128_255),
}


def tokens(instructions: str | None, logits: FloatRow, params: SamplingParams, draws: int) -> list[int]:
    """Each is accepted before the next one."""
    sampler = Sampler(params, len(logits), instructions)
    drawn = []
    for _ in range(draws):
        drawn.append(sampler.sample(logits))
        sampler.accept(drawn[-1])
    return drawn


def test_what_there_is() -> None:
    """The first two on every CPU of its kind, and none that no test knows."""
    assert sampler_instructions()[:2] == SAMPLER[:2]
    assert set(sampler_instructions()) <= set(SAMPLER)


@pytest.mark.parametrize("cut", slow_except(CUTS, *QUICK_CUTS))
def test_the_scalar_kernels_give_the_tokens_of_the_twin(cut: str) -> None:
    params = replace(CUTS[cut], seed=5)
    for logits in ADVERSARIAL.values():
        sampler = Sampler(params, len(logits), "scalar")
        assert [sampler.sample(logits) for _ in range(3)] == [twin.sample(logits, params, 5, n) for n in range(3)]


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("cut", slow_except(CUTS, *QUICK_CUTS))
def test_same_tokens(name: str, cut: str) -> None:
    params = replace(CUTS[cut], seed=3, repeat_penalty=1.1, presence_penalty=0.2)
    for title, logits in ADVERSARIAL.items():
        assert tokens(name, logits, params, 12) == tokens("scalar", logits, params, 12), title


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("row", slow_except(LARGE, "peaked", "holes"))
def test_same_tokens_of_a_large_vocabulary(name: str, row: str) -> None:
    for cut in CUTS.values():
        params = replace(cut, seed=11)
        draws = scaled(4, quick=1)
        assert tokens(name, LARGE[row], params, draws) == tokens("scalar", LARGE[row], params, draws), cut


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("row", [*ADVERSARIAL, *LARGE])
def test_same_bits_of_logprobs(name: str, row: str) -> None:
    """The sum of all weights, and block maxima of rows of any length."""
    logits = ADVERSARIAL[row] if row in ADVERSARIAL else LARGE[row]
    mine, scalar = (Sampler(SamplingParams(), len(logits), n).logprobs(logits, 0, 30) for n in (name, "scalar"))
    assert mine == scalar


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf])
@pytest.mark.parametrize("where", [0, 15, 63, 64, 4999, 5000])
def test_nan_and_infinity_are_found_anywhere(name: str, bad: float, where: int) -> None:
    logits = rows.gaussian(5001, 2.0)
    logits[where] = bad
    with pytest.raises(SamplingError, match=f"in 1 places, the first at token {where}:"):
        Sampler(SamplingParams(), 5001, name).sample(logits)


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("where", [0, 70, 1023, 1024, 2303])
def test_nan_and_infinity_are_found_beside_anything(name: str, bad: float, where: int) -> None:
    """The scan looks at sums first: of -inf and +inf, and of numbers too large to add up."""
    for logits in (np.full(2304, -np.inf), np.full(2304, rows.LOWEST), np.full(2304, rows.HIGHEST)):
        logits[where] = bad
        with pytest.raises(SamplingError, match=f"in 1 places, the first at token {where}:"):
            Sampler(SamplingParams(), 2304, name).sample(rows.row(logits))


@pytest.mark.parametrize("name", SETS)
def test_many_draws(name: str) -> None:
    params, p = CASES["temperature"]
    samplers = [Sampler(replace(params, seed=seed), len(LOGITS), name) for seed in range(2000)]
    statistic, degrees = chi_square(counts_of_rows(samplers, LOGITS, DRAWS), p)
    assert statistic < critical_value(degrees)


def test_unknown_instructions_raise() -> None:
    with pytest.raises(ConfigError, match="no 'mmx' kernels of the sampler here; there are"):
        Sampler(SamplingParams(), 10, "mmx")
