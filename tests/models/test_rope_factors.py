"""Factors that divide rotary angles (`rope_freqs.weight`, Llama 3.1) are read by every decoder that rotates."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.models.cases import difference
from tests.models.variants import WRITERS, loaded, minimal, prompt, rows
from tests.support.mmproj import changed

OTHERWISE = {"gemma4", "phi3"}
"""They have other factors in this place."""
UNSCALED = {"granitehybrid", "kimi-linear", "mamba2", "muse-glimmer", "nemotron_h", "nemotron_h_moe", "olmo-hybrid"}
"""In no layer of the smallest file positions are stretched."""
SAME = 1e-4
"""Largest difference in standard deviations: two ways to compute the same angles."""


@pytest.mark.parametrize("architecture", sorted(set(WRITERS) - OTHERWISE - UNSCALED))
def test_factors_of_two_are_positions_of_half(architecture: str, tmp_path: Path) -> None:
    """In the layers that a linear scaling stretches, and in no other ones."""
    plain = Path(minimal(architecture).file(tmp_path))
    with loaded(str(plain)) as parts:
        n, name = parts.model.options.n_rope_factors, parts.model.architecture
        unscaled = rows(parts.executor, prompt(40), 40)
    kind, factor = f"{name}.rope.scaling.type", f"{name}.rope.scaling.factor"
    stretched = changed(plain, tmp_path / "stretched.gguf", {kind: "linear", factor: 2.0})
    twos = {"rope_freqs.weight": np.full(n, 2, np.float32)}
    divided = changed(plain, tmp_path / "divided.gguf", {kind: "none", factor: None}, twos)
    with loaded(str(stretched)) as parts:
        expected = rows(parts.executor, prompt(40), 40)
    with loaded(str(divided)) as parts:
        assert parts.model.unused_weights == ()
        assert difference(rows(parts.executor, prompt(40), 40), expected) <= SAME
    assert difference(unscaled, expected) > 100 * SAME
