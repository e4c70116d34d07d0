"""Rotary options as files spell them: llama.cpp's keys and Ollama's, defaults, and numbers that make no rotation."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

import pytest

from ollama_engine.errors import ModelFormatError, UnsupportedModelError
from ollama_engine.ml.gguf.metadata import Metadata
from ollama_engine.nn import Rope, read_rope


def read(**values: Any) -> Rope:
    """From keys below `rope.` with `.` written as `__`; the model was trained on 4096 positions."""
    keys = {f"x.rope.{key.replace('__', '.')}": value for key, value in values.items()}
    return read_rope(Metadata({"x.context_length": 4096, **keys}, "x"), 64)


YARN = {"scaling__type": "yarn", "scaling__factor": 8.0, "scaling__original_context_length": 512}
GAIN = 1 + 0.1 * math.log(8)
YARN_READ = {"scale": 0.125, "original_context": 512, "ext_factor": 1.0}
LINEAR = {"scaling__type": "linear", "scaling__factor": 4.0}


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, {}),
        ({"freq_base": 5e5}, {"base": 5e5}),
        ({"freq_base": 1000000}, {"base": 1e6}),
        (LINEAR, {"scale": 0.25}),
        ({"scaling__factor": 4.0}, {"scale": 0.25}),
        ({"scale_linear": 4.0}, {"scale": 0.25}),
        ({"scaling__factor": 2.0, "scale_linear": 4.0}, {"scale": 0.5}),
        ({"scaling__factor": 0.0}, {}),
        ({"scaling__type": "none", "scaling__factor": 4.0}, {}),
        ({"scaling__attn_factor": 1.5}, {"attn_factor": 1.5}),
        ({"scaling__original_context_length": 128}, {"original_context": 128}),
        ({"scaling__original_context_length": 2**32 - 1}, {"original_context": 2**31 - 1}),
        (YARN, YARN_READ),
        ({"scaling__type": "yarn"}, {"ext_factor": 1.0}),
        (
            {**YARN, "scaling__yarn_ext_factor": 0.5, "scaling__yarn_attn_factor": 2.0, "scaling__yarn_beta_fast": 16.0,
             "scaling__yarn_beta_slow": 2.0},
            {**YARN_READ, "ext_factor": 0.5, "attn_factor": 2.0 / GAIN, "beta_fast": 16.0, "beta_slow": 2.0},
        ),
        (
            {**YARN, "scaling__extrapolation_factor": 0.5, "scaling__beta_fast": 16.0, "scaling__beta_slow": 2.0},
            {**YARN_READ, "ext_factor": 0.5, "beta_fast": 16.0, "beta_slow": 2.0},
        ),
        (
            {**YARN, "scaling__yarn_beta_fast": 8.0, "scaling__beta_fast": 16.0},
            {**YARN_READ, "beta_fast": 8.0},
        ),
        (
            {**YARN, "scaling__attn_factor": 3.0, "scaling__yarn_attn_factor": 2.0},
            {**YARN_READ, "attn_factor": 6.0 / GAIN},
        ),
    ],
)  # fmt: skip
def test_keys(values: dict[str, Any], expected: dict[str, Any]) -> None:
    assert asdict(read(**values)) == pytest.approx(asdict(Rope(n_dims=64, **{"original_context": 4096, **expected})))


def test_the_mode_is_the_models() -> None:
    assert read_rope(Metadata({"x.context_length": 1}, "x"), 32, mode="neox") == Rope(
        n_dims=32, mode="neox", original_context=1
    )


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"freq_base": 1.0}, r"freq_base is 1 .* expected 1 to"),
        ({"freq_base": -1e4}, "freq_base is -10000"),
        ({"freq_base": "ten"}, "freq_base"),
        ({"scaling__factor": -4.0}, "factor is -4"),
        ({"scaling__factor": 1e-30}, "factor is 1e-30"),
        ({"scaling__factor": 1e30}, "factor"),
        ({"scaling__attn_factor": 0.0}, "attn_factor is 0"),
        ({**YARN, "scaling__yarn_beta_fast": 0.0}, "beta_fast is 0"),
        ({**YARN, "scaling__beta_slow": -1.0}, "beta_slow is -1"),
        ({**YARN, "scaling__yarn_attn_factor": -1.0}, "yarn_attn_factor is -1"),
        ({**YARN, "scaling__yarn_ext_factor": float("nan")}, "yarn_ext_factor"),
    ],
    ids=str,
)
def test_numbers_that_make_no_rotation(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelFormatError, match=message):
        read(**values)


@pytest.mark.parametrize("kind", ["longrope", "su", "dynamic", ""])
def test_scalings_that_are_not_computed_here_are_refused(kind: str) -> None:
    with pytest.raises(UnsupportedModelError, match="supported: none, linear, yarn"):
        read(scaling__type=kind, scaling__factor=4.0)


def test_a_model_must_say_how_long_it_was_trained() -> None:
    with pytest.raises(ModelFormatError, match="context_length"):
        read_rope(Metadata({}, "x"), 64)
