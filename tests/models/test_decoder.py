"""Metadata of decoders beyond the usual: windows, local rotations, and what early files of a model lack."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ollama_engine.errors import ModelFormatError
from ollama_engine.ml.gguf.metadata import Metadata
from ollama_engine.models.dialects import known_values
from ollama_engine.models.gemma2 import Gemma2
from ollama_engine.models.gemma3 import Gemma3
from ollama_engine.models.options import read_common, read_experts, read_local_ropes, read_windows
from ollama_engine.models.phi3 import Phi3
from tests.models.variants import VARIANTS, loaded

SIZES = {
    "block_count": 6, "embedding_length": 64, "feed_forward_length": 96, "context_length": 256,
    "attention.head_count": 4, "attention.head_count_kv": 2, "attention.layer_norm_rms_epsilon": 1e-6,
}  # fmt: skip


def metadata(**values: Any) -> Metadata:
    """Keys with `.` written as `__`; None leaves one out."""
    keys = {**SIZES, **{name.replace("__", "."): value for name, value in values.items()}}
    return Metadata({f"x.{name}": value for name, value in keys.items() if value is not None}, "x")


def windows(period: int, **values: Any) -> tuple[int | None, ...]:
    return read_windows(metadata(**{f"attention__{name}": value for name, value in values.items()}), 6, period)


PATTERNS: list[tuple[int, dict[str, Any], list[int]]] = [
    (2, {}, []),
    (2, {"sliding_window": 0}, []),
    (2, {"sliding_window": 8}, [0, 2, 4]),
    (6, {"sliding_window": 8}, [0, 1, 2, 3, 4]),
    (1, {"sliding_window": 8}, []),
    (0, {"sliding_window": 8}, [0, 1, 2, 3, 4, 5]),
    (6, {"sliding_window": 8, "sliding_window_pattern": 3}, [0, 1, 3, 4]),
    (6, {"sliding_window": 8, "sliding_window_pattern": np.array([1, 0, 0, 0, 0, 1], bool)}, [0, 5]),
    (6, {"sliding_window": 8, "sliding_window_pattern": np.ones(6, bool)}, [0, 1, 2, 3, 4, 5]),
    (6, {"sliding_window": 8, "sliding_window_pattern": np.zeros(6, np.int32)}, []),
]


def test_the_first_of_a_period_sees_all_where_a_model_says_so() -> None:
    found = read_windows(metadata(attention__sliding_window=8), 6, 3, full_first=True)
    assert found == (None, 8, 8, None, 8, 8)


@pytest.mark.parametrize(("period", "values", "local"), PATTERNS)
def test_windows(period: int, values: dict[str, Any], local: list[int]) -> None:
    assert windows(period, **values) == tuple(8 if i in local else None for i in range(6))


def test_a_pattern_of_another_length_is_refused() -> None:
    with pytest.raises(ModelFormatError, match="sliding_window_pattern"):
        windows(6, sliding_window=8, sliding_window_pattern=np.ones(5, bool))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"block_count": 0}, "block_count 0 is 1 to 4096"),
        ({"block_count": 2**32 - 1}, "block_count 4294967295 is 1 to 4096"),
        ({"feed_forward_length": 0}, "feed_forward_length 0"),
        ({"attention__head_count_kv": 3}, "head_count 4 is no multiple of head_count_kv 3"),
        ({"attention__head_count": 0}, "attention.head_count 0"),
        ({"attention__key_length": 8}, None),
        ({"attention__key_length": 8, "attention__value_length": 16}, "one head size"),
        ({"attention__key_length": 7}, "even size, got 7"),
        ({"attention__layer_norm_rms_epsilon": -1.0}, "layer_norm_rms_epsilon is 0 or more"),
        ({"rope__freq_base_swa": 0.5}, None),
    ],
)
def test_absurd_metadata(values: dict[str, Any], message: str | None) -> None:
    if message is None:
        assert read_common(metadata(**values), 320).n_vocab == 320
        return
    with pytest.raises(ModelFormatError, match=message):
        read_common(metadata(**values), 320)


def test_the_size_of_an_expert() -> None:
    experts = {"expert_count": 8, "expert_used_count": 4}
    assert read_experts(metadata(**experts))["n_ff_exp"] == 96 // 4
    assert read_experts(metadata(**experts), 96)["n_ff_exp"] == 96
    assert read_experts(metadata(**experts, expert_feed_forward_length=32), 96)["n_ff_exp"] == 32
    for used in (0, 9):
        with pytest.raises(ModelFormatError, match=f"expert_used_count {used} is 1 to expert_count 8"):
            read_experts(metadata(expert_count=8, expert_used_count=used))


def test_local_layers_rotate_without_scaling() -> None:
    found = metadata(rope__scaling__type="linear", rope__scaling__factor=8.0, rope__freq_base=1e6)
    rope = read_common(found, 320).rope
    local, full = read_local_ropes(found, rope, (8, None), base=1e4)
    assert (local.base, local.scale, full.base, full.scale) == (1e4, 1.0, 1e6, 1 / 8)
    assert full == rope
    with pytest.raises(ModelFormatError, match="freq_base_swa"):
        read_local_ropes(metadata(rope__freq_base_swa=0.5), rope, (8, None), base=1e4)


GEMMA: list[tuple[dict[str, Any], tuple[float, float, float]]] = [
    ({"rope__freq_base": 1e6}, (1e6, 1.0, 1e4)),
    ({"rope__freq_base": 1e6, "rope__freq_base_swa": 2e4}, (1e6, 1.0, 2e4)),
    ({"rope__freq_base": 1e6, "rope__scaling__type": "linear", "rope__scaling__factor": 8.0}, (1e6, 1 / 8, 1e4)),
    ({"rope__global__freq_base": 5e5, "rope__local__freq_base": 3e4}, (5e5, 1.0, 3e4)),
    ({"rope__global__freq_base": 1e6, "rope__local__freq_base": 1e4, "block_count": 34}, (1e6, 1 / 8, 1e4)),
    ({"rope__freq_base": 1e6, "block_count": 34}, (1e6, 1.0, 1e4)),
]


@pytest.mark.parametrize(("values", "expected"), GEMMA)
def test_gemma3_in_all_dialects(values: dict[str, Any], expected: tuple[float, float, float]) -> None:
    stored = metadata(attention__sliding_window=8, final_logit_softcapping=30.0, **values)
    named = {key.replace("x.", "gemma3.", 1): value for key, value in stored.values.items()}
    o = Gemma3.read_options(known_values({**named, "general.architecture": "gemma3"}), 320)
    local, full = o.ropes[0], o.ropes[5]
    assert local is not None
    assert full is not None
    assert (full.base, full.scale, local.base) == pytest.approx(expected)
    assert (local.scale, o.logit_softcap, o.attention_softcap, o.head_dim) == (1.0, 0.0, 0.0, 256)
    assert o.windows[:6] == (8, 8, 8, 8, 8, None)


@pytest.mark.parametrize(("model", "widest"), [(Gemma2, 46), (Gemma3, 62)])
def test_the_widest_gemmas_scale_scores_by_their_width(model: type[Gemma2 | Gemma3], widest: int) -> None:
    assert model.read_options(metadata(), 320).attention_scale == pytest.approx(256**-0.5)
    assert model.read_options(metadata(block_count=widest), 320).attention_scale == pytest.approx(16**-0.5)
    told = metadata(block_count=widest, attention__scale=0.5)
    assert model.read_options(told, 320).attention_scale == 0.5


@pytest.mark.parametrize("cap", [-1.0, 1e-9, 1e7])
def test_soft_caps_out_of_range(cap: float) -> None:
    with pytest.raises(ModelFormatError, match="final_logit_softcapping is 0 for none"):
        Gemma2.read_options(metadata(final_logit_softcapping=cap), 320)


def test_phi3_takes_the_short_factors_within_the_original_context(tmp_path: Path) -> None:
    variant = next(v for v in VARIANTS if "longrope" in v.name)
    with loaded(variant.file(tmp_path)) as parts:
        model = parts.model
        assert isinstance(model, Phi3)
        tokens = next(iter(parts.weights.values()))  # any tensor
        assert model.rope_factors(tokens) is model.long_factors.weight
        model.fit_context(model.options.rope.original_context)
        assert model.rope_factors(tokens) is model.short_factors.weight
        original = model.options.rope.original_context
    for num_ctx, chosen in ((original, "short_factors"), (original + 1, "long_factors")):
        with loaded(variant.file(tmp_path), num_ctx=num_ctx) as parts:
            assert isinstance(parts.model, Phi3)
            tokens = next(iter(parts.weights.values()))
            assert parts.model.rope_factors(tokens) is getattr(parts.model, chosen).weight


def test_yarn_divisors_are_yarns_ramp() -> None:
    """Numbers of transformers for gpt-oss: base 150000, 64 dimensions, 4096 positions stretched 32 times."""
    rope = read_common(metadata(rope__freq_base=150000.0), 320).rope
    exact = replace(rope, n_dims=64, scale=1 / 32, original_context=4096, ext_factor=1.0).yarn_divisors()
    assert exact[:9] == pytest.approx([1.0] * 9)
    assert exact[18:] == pytest.approx([32.0] * 14)
    unscaled = 1 - (13 - 8.0927797) / (17.3980212 - 8.0927797)
    assert exact[13] == pytest.approx(1 / ((1 - unscaled) / 32 + unscaled), rel=1e-6)
