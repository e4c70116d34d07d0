"""Rotated keys and values: in q4_0 less is lost, and attention is the same as that of plain ones."""

from __future__ import annotations

from unittest.mock import patch

import numpy as np
import pytest

from ollama_engine import Engine, demo
from ollama_engine.input import FloatArray
from ollama_engine.kvcache import rotation
from ollama_engine.kvcache.config import LayerShape
from ollama_engine.kvcache.rotation import hadamard_matrix, rotated, rotation_of
from ollama_engine.ml.device.placement import BackendParams
from ollama_engine.ml.graph.backend import Backend
from ollama_engine.ml.graph.context import Context

TEXT = "Once there was a little fox who lived in a big wood. One day she found a red ball. " * 4


def logits(dtype: str) -> FloatArray:
    with Engine(demo.path(), num_ctx=512, threads=1, kv_cache_type=dtype) as engine:
        rows = engine.logits(TEXT)
    centred: FloatArray = rows - rows.mean(axis=1, keepdims=True)
    return centred


def test_less_is_lost() -> None:
    exact = logits("f32")
    lost = float(np.std(logits("q4_0") - exact))
    with patch.object(rotation, "ROTATED", ()):
        assert lost < 0.75 * float(np.std(logits("q4_0") - exact))


def test_nothing_changes_where_nothing_is_rounded() -> None:
    """With f32, rotated queries, keys and values give what plain ones give, but for the last bits.

    Products round activations to 8 bits: they hide most of these, and make a whole step of one in some thousands.
    """
    exact = logits("f32")
    with patch.object(rotation, "ROTATED", ("f32",)):
        found = logits("f32")
    assert float(np.std(found - exact)) < 0.01 * float(np.std(exact))


@pytest.mark.parametrize(("key_dim", "value_dim", "run"), [
    (64, 64, 64), (128, 128, 128), (256, 256, 256), (512, 512, 256), (96, 96, 32), (80, 80, 0), (576, 512, 64),
    (192, 128, 64), (16, 16, 0),
])  # fmt: skip
def test_runs(key_dim: int, value_dim: int, run: int) -> None:
    layer = LayerShape(kv_heads=2, key_dim=key_dim, value_dim=value_dim)
    assert [rotation_of(layer, dtype) for dtype in ("f16", "q8_0", "q5_1", "iq4_nl", "q4_0")] == [0, 0, run, run, run]


def test_other_devices_multiply_by_the_matrix() -> None:
    x = np.random.default_rng(0).standard_normal((3, 2, 128)).astype(np.float32)
    expected = (x.reshape(-1, 64).astype(np.float64) @ hadamard_matrix(64)).reshape(x.shape)
    with Backend(BackendParams(threads=1, gpu_layers=0)) as backend, Context(backend) as ctx:
        given = ctx.from_floats(x)
        found = [rotated(given, 64)]
        with patch.object(rotation, "on_cpu_alone", lambda _: False):
            found.append(rotated(given, 64))
            once = ctx.constant_bytes
            for _ in range(99):  # layers of a model
                found.append(rotated(found[-1], 64))
            assert ctx.constant_bytes == once, "one matrix for all"
            found = [*found[:2], found[3]]
        ctx.forward(*found)
        ctx.compute()
        for y in found:
            np.testing.assert_allclose(y.numpy(), expected, atol=4e-6)
        assert rotated(given, 0) is given
