"""Targets: how fast is fast enough, and which rows a change must not slow down.

Both name rows as pytest does; a test checks that all named rows exist.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bench.rows import Answer


@dataclass(frozen=True)
class Target:
    """What a row is to reach; one of the three."""

    seconds: float | None = None
    """At most."""
    times_peer: float | None = None
    """At least so many times as fast as the peer."""
    over_twin: float | None = None
    """At most so many seconds more than the twin."""

    def met(self, answer: Answer) -> bool | None:
        """None where what it is compared to was not measured."""
        if self.seconds is not None:
            return answer.ours.seconds <= self.seconds
        if self.over_twin is not None:
            return None if answer.twin is None else answer.ours.seconds - answer.twin.seconds <= self.over_twin
        assert self.times_peer is not None, "a target says one thing"
        found = answer.times_as_fast(answer.peer)
        return None if found is None else found >= self.times_peer


def us(microseconds: float) -> Target:
    return Target(seconds=microseconds / 1e6)


TARGETS: Mapping[str, Target] = {
    "bench_sample.py::test_step[128256-top-k 40]": us(20),
    "bench_sample.py::test_step[128256-top-k off]": us(200),
    "bench_sample.py::test_step[128256-top-k off, temperature last]": us(300),
    "bench_sample.py::test_step[262144-top-k 40]": us(40),
    "bench_sample.py::test_step[262144-top-k off]": us(400),
    "bench_sample.py::test_step_by_spread[0.0]": us(200),
    "bench_sample.py::test_step_by_spread[0.001]": us(200),
    "bench_sample.py::test_step_by_spread[0.1]": us(200),
    "bench_masks.py::test_prompt[causal-C]": us(500),
    "bench_masks.py::test_row[1-causal-C]": us(20),
    "bench_masks.py::test_row[64-causal-C]": us(20),
    "bench_format.py::test_compile": us(50_000),
    "bench_format.py::test_compiled_before": us(2_000),
    "bench_format.py::test_mask[text]": us(1_000),
    "bench_cells.py::test_step[C]": us(20),
    "bench_graph.py::test_build[28-1]": us(500),
    "bench_step.py::test_without_computing[1]": us(150),
    "bench_step.py::test_without_computing[32]": us(400),
    "bench_shift.py::test_shift": Target(times_peer=1.0),
    "bench_prefix.py::test_cached_prefix": Target(over_twin=5e-3),
    "bench_engine.py::test_prefill[ours]": Target(times_peer=1.0),
    "bench_engine.py::test_decode[ours]": Target(times_peer=1.0),
    "bench_engine.py::test_short_run[ours]": Target(times_peer=1.0),
    "bench_engine.py::test_streams[8-ours]": Target(times_peer=1.2),
}

GATE: tuple[str, ...] = (
    "bench_sample.py::test_step[128256-top-k 40]",
    "bench_sample.py::test_step[128256-top-k off]",
    "bench_sample.py::test_step[128256-greedy]",
    "bench_sample.py::test_step[262144-top-k 40]",
    "bench_sample.py::test_step_with_penalties[top-k 40-4096]",
    "bench_sample.py::test_logprobs[128256-20]",
    "bench_sample.py::test_batch[top-k 40-32]",
    "bench_masks.py::test_prompt[causal-C]",
    "bench_masks.py::test_prompt[window 1024-C]",
    "bench_masks.py::test_image[2-C]",
    "bench_masks.py::test_step[C]",
    "bench_cells.py::test_shift_plan[C]",
    "bench_graph.py::test_build[16-1]",
    "bench_graph.py::test_build[28-1]",
    "bench_step.py::test_without_computing[1]",
    "bench_step.py::test_without_computing[8]",
    "bench_step.py::test_without_computing[32]",
    "bench_bookkeeping.py::test_plan_decoding[64]",
    "bench_bookkeeping.py::test_plan_prompts[64]",
    "bench_tokenizer.py::test_encode[demo]",
    "bench_tokenizer.py::test_decode[demo]",
    "bench_load.py::test_demo_tables",
    "bench_shift.py::test_share",
)
"""Quick and steady enough for every change: one thread, 10 us to 2 ms, so that some rounds meet no neighbour."""
