"""Options of Llama 4 from the keys of our converter, of Ollama's and of llama.cpp's."""

from __future__ import annotations

from typing import Any

import pytest

from ollama_engine.errors import ModelFormatError
from ollama_engine.models import known_values
from ollama_engine.models.llama4.text import Llama4Options, Llama4Text
from tests.models.llama4 import small

LLAMA_CPP = {
    "general.architecture": "llama4", "llama4.block_count": 8, "llama4.embedding_length": 64,
    "llama4.feed_forward_length": 96, "llama4.expert_feed_forward_length": 48, "llama4.attention.head_count": 4,
    "llama4.attention.head_count_kv": 2, "llama4.attention.key_length": 32, "llama4.context_length": 1000,
    "llama4.attention.layer_norm_rms_epsilon": 1e-5, "llama4.expert_count": 16, "llama4.expert_used_count": 1,
    "llama4.interleave_moe_layer_step": 2,
}  # fmt: skip
"""The keys that its converter writes; it has the rest by heart."""


def read(**changes: Any) -> Llama4Options:
    """`changes` of keys, with two underscores for a dot."""
    changed = {f"llama4.{name.replace('__', '.')}": value for name, value in changes.items()}
    return Llama4Text.read_options(known_values({**LLAMA_CPP, **changed}), 320)


def test_what_llama_cpp_has_by_heart() -> None:
    o = read()
    assert [rope is None for rope in o.ropes] == [False, False, False, True] * 2
    assert (o.chunk, o.temperature_scale, o.temperature_floor, o.expert_period) == (8192, 0.1, 8192, 2)
    assert (o.qk_norm, o.n_ff, o.n_ff_exp, o.rope.mode) == (True, 96, 48, "norm")


def test_the_model_with_128_experts_does_not_normalize_queries_and_keys() -> None:
    assert not read(expert_count=128).qk_norm
    assert read(expert_count=128, use_qk_norm=True).qk_norm
    assert not read(use_qk_norm=False).qk_norm


def test_a_window_of_0_means_positions_and_no_chunks_in_all_layers() -> None:
    o = read(attention__sliding_window=0)
    assert None not in o.ropes
    assert (o.chunk, o.temperature_scale) == (None, 0.0)


def test_keys_of_ollama() -> None:
    o = read(no_rope_interval=2, attention__chunk_size=64, attention__scale=0.5, attention__floor_scale=16,
             attention__temperature_tuning=True)  # fmt: skip
    assert [rope is None for rope in o.ropes] == [False, True] * 4
    assert (o.chunk, o.temperature_scale, o.temperature_floor) == (64, 0.5, 16)
    assert read(attention__temperature_tuning=False).temperature_scale == 0
    assert read(no_rope_interval=0).ropes.count(None) == 0
    without = {key: value for key, value in LLAMA_CPP.items() if not key.endswith("key_length")}
    assert Llama4Text.read_options(known_values({**without, "llama4.attention.head_dim": 32}), 320).head_dim == 32


def test_a_model_without_experts() -> None:
    o = read(expert_count=0)
    assert (o.n_expert, o.expert_period) == (0, 0)


def test_a_floor_of_0_is_refused() -> None:
    with pytest.raises(ModelFormatError, match="floor_scale is 1 or more, got 0"):
        read(attention__floor_scale=0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"image_size": 70}, "has 5 patches of 14 along a side; expected a multiple of 2"),
        ({"image_size": 10}, "has 0 patches"),
        ({"pixel_shuffle_ratio": 0.0}, "pixel_shuffle_ratio is above 0"),
        ({"pixel_shuffle_ratio": 2.0}, "pixel_shuffle_ratio is above 0"),
        ({"attention__head_count": 16}, "have 2 dimensions .* a multiple of 4"),
        ({"rope__freq_base": 1.0}, "vision.rope.freq_base is 1"),
        ({"block_count": 0}, "sizes of the vision tower do not fit"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(changes: dict[str, float], message: str) -> None:
    with pytest.raises(ModelFormatError, match=message):
        small.options(**changes)
