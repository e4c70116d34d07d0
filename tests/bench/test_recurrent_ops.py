"""bench/recurrent_ops.py: ours and ggml's compute the same, so that their times can be compared."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from bench.recurrent_ops import Batch, Convolution, DeltaNet, Layer, Scan, Sums, a_turn, ggmls, n_layers, ours
from ollama_engine.ml.device.cpu_check import required_instructions
from ollama_engine.ml.device.placement import BackendParams
from ollama_engine.ml.graph.backend import Backend

SMALL: tuple[Layer, ...] = (
    Sums("small", 40, 4), Convolution("small", 40, 4), Convolution("gated", 40, 3, gated=True),
    Scan("small", 4, 32, 16), DeltaNet("small", 3, 32),
)  # fmt: skip


@pytest.mark.skipif(sys.platform != "linux", reason="ggml's libraries are found by their names")
@pytest.mark.skipif(not required_instructions(), reason="a portable build: ggml's libraries have other names")
@pytest.mark.parametrize("layer", SMALL, ids=lambda layer: layer.name)
@pytest.mark.parametrize("batch", [Batch(1, 1), Batch(9, 1), Batch(5, 3)], ids=str)
def test_ours_and_ggmls_compute_the_same(layer: Layer, batch: Batch) -> None:
    with (
        Backend(BackendParams(threads=2, gpu_layers=0)) as backend,
        ours(layer, batch, backend, 2) as mine,
        ggmls(layer, batch, 2, 2) as theirs,
    ):
        mine[0]()
        theirs[0]()
        n = np.prod(layer.operands(batch)[2 if isinstance(layer, DeltaNet) else 0].shape)
        found, expected = (side[1](int(n) // (3 if getattr(layer, "gated", False) else 1)) for side in (mine, theirs))
    np.testing.assert_allclose(found, expected, atol=1e-6 * (1 + np.abs(expected).max()))
    assert np.abs(expected).max() > 0.1


def test_a_turn_is_of_one_layer_and_graphs_have_as_many_as_caches_do_not_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[int] = []
    clock = iter(range(100))
    monkeypatch.setattr("time.perf_counter", lambda: next(clock))
    side = (lambda: runs.append(0), np.zeros, lambda: runs.append(1))
    assert a_turn(side, 4)() <= 1 / 2
    assert runs == [0, 0, 0, 1], "one before the clock starts, then two at least"
    assert n_layers(SMALL[0], Batch(1, 1)) == 24
    assert n_layers(Sums("large", 6144, 4), Batch(512, 1)) == 1
