"""The decision between kernels, from recorded and from made-up times."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from ollama_engine.ml.ops.small_batch import SMALL_BATCH_VARIANTS
from ollama_engine.ml.weights.kernel_choice import ALL, Borders, KernelChoice
from ollama_engine.ml.weights.kernel_timings import GGML, REPACKED, decide
from ollama_engine.ml.weights.kernel_variants import DEFAULT_VARIANT, FewRows

ROWS = (1, 2, 8)
ZEN_4: Mapping[str, Mapping[str, tuple[int, ...]]] = {
    "q4_K": {"burst": (24, 49, 151), "none": (25,), "l2": (49, 103, 174), GGML: (61, 50, 76), REPACKED: (76, 76, 81)},
    "q6_K": {"burst": (17, 30, 91), GGML: (50, 45, 38)},
    "q8_0": {"burst": (27, 38, 145), GGML: (33, 28, 69)},
    "q4_0": {"burst": (70, 75, 197), "none": (22,), GGML: (38,), REPACKED: (69,)},
}
"""GOP/s of one thread on an AMD EPYC, family 25 model 17, with weights from memory, for ROWS or the first of them."""


BASE = KernelChoice({dtype: Borders(1, 32, per_expert=64) for dtype in ZEN_4})
"""As the table was then: prompts were left to ggml's kernels, so nothing promised their bits."""


def timings(table: Mapping[str, Mapping[str, tuple[int, ...]]]) -> dict[FewRows, dict[str, float]]:
    """Seconds for the same weights at each number of rows; only their ratios count."""
    return {
        FewRows(dtype, rows, False): {name: rows / speeds[i] for name, speeds in kernels.items() if i < len(speeds)}
        for dtype, kernels in table.items()
        for i, rows in enumerate(ROWS)
    }


def test_the_recorded_times_of_a_zen_4() -> None:
    choice = decide(BASE, timings(ZEN_4))
    assert [choice.variant("q4_K", n) for n in (1, 2, 3, 8, 30)] == ["l2"] * 5
    assert [choice.variant("q4_0", n) for n in (1, 2, 8)] == ["burst"] * 3
    assert 1 in choice.rows("q4_K", 4096)  # 0.64, 1.36 and 2.1 times as fast as the repacked copy
    assert choice.measured[0] == "q4_K: l2 for 1, 2, 8 rows"


def test_the_same_without_its_fast_variant() -> None:
    """With bursts alone, ggml's kernel is the faster one of Q4_K on average, and serves one row and eight."""
    q4_k = {name: speeds for name, speeds in ZEN_4["q4_K"].items() if name != "l2"}
    choice = decide(BASE, timings({**ZEN_4, "q4_K": q4_k}))
    assert not choice.rows("q4_K", 4096)
    assert choice.wants_repacked("q4_K", experts=False)
    assert choice.rows_per_expert("q4_K") == 64, "experts were not measured"
    assert choice.measured[0] == "q4_K: ggml"
    assert not choice.rows("q6_K", 4096), "ours is 0.34, 0.67 and 2.4 times as fast"
    assert 1 in choice.rows("q8_0", 4096), "ours is 0.82, 1.36 and 2.1 times as fast"


@pytest.mark.parametrize("slow", SMALL_BATCH_VARIANTS)
def test_a_slow_variant_is_avoided(slow: str) -> None:
    times = {name: 2.0 if name == slow else 1.0 for name in SMALL_BATCH_VARIANTS}
    choice = decide(KernelChoice({"q4_K": Borders(1, 32)}), {FewRows("q4_K", 1, False): times})
    assert choice.variant("q4_K", 1) == ("burst" if slow == DEFAULT_VARIANT else DEFAULT_VARIANT)


def test_a_variant_that_is_hardly_faster_is_not_taken() -> None:
    few = FewRows("q4_K", 1, False)
    base = KernelChoice({"q4_K": Borders(1, 32)})
    assert decide(base, {few: {"spread": 1.14, "l2": 1.0}}).variant("q4_K", 1) == "spread"
    assert decide(base, {few: {"spread": 1.16, "l2": 1.0}}).variant("q4_K", 1) == "l2"
    started = replace(base, variants={few: "deep"})
    assert decide(started, {few: {"spread": 1.0, "deep": 1.14}}).variant("q4_K", 1) == "deep"
    assert decide(started, {few: {"spread": 1.0, "deep": 1.16}}).variant("q4_K", 1) == "spread"


def test_a_kernel_that_serves_all_rows_stays() -> None:
    """A prompt has the bits of its tokens one by one; ggml's kernels would give it others."""
    times = {FewRows("q4_0", 1, experts): {"spread": 4.0, "l2": 3.0, GGML: 1.0} for experts in (False, True)}
    choice = decide(KernelChoice({"q4_0": Borders(1, ALL, per_expert=256)}), times)
    assert choice.rows("q4_0", 4096) == range(1, ALL + 1)
    assert choice.variant("q4_0", 1) == "l2"
    assert choice.rows_per_expert("q4_0") == 0, "experts have a border"
    assert choice.measured == ("q4_0: l2 for 1 rows (ggml's kernel is 3.0 times as fast)", "q4_0 experts: ggml")


def test_experts_are_decided_alone() -> None:
    times = {FewRows("q4_K", 2, True): {"spread": 2.0, "burst": 1.0}}
    choice = decide(KernelChoice({"q4_K": Borders(1, 32, per_expert=64)}), times)
    assert choice.variant("q4_K", 2) == choice.variant("q4_K", 1, experts=True) == "spread"
    assert choice.variant("q4_K", 3, experts=True) == "burst"


def test_what_has_no_kernel_of_ours_stays() -> None:
    base = KernelChoice({"q6_K": Borders(2, 64)})
    assert decide(base, {}) == base
    assert decide(base, {FewRows("q4_K", 1, False): {"spread": 1.0}}).borders == base.borders
