"""What the options of an engine may be, and what `help()` says of the public dataclasses."""

from __future__ import annotations

import inspect
import pydoc
from dataclasses import MISSING, fields

import pytest

from ollama_engine import Chunk, Completion, Engine, EngineConfig, ModelInfo, SamplingParams, Usage
from ollama_engine.config import CHOICES, RANGES
from ollama_engine.errors import ConfigError


@pytest.mark.parametrize("cls", [Chunk, Completion, EngineConfig, ModelInfo, SamplingParams, Usage])
def test_help_says_what_every_field_means(cls: type) -> None:
    shown = pydoc.plain(pydoc.render_doc(cls))
    _, *behind = shown.split("Attributes:")  # before it is the signature, which has a line for each field since 3.13
    assert len(behind) == 1
    for field in fields(cls):
        told = behind[0].partition(f" {field.name}: ")[2].partition("\n")[0]
        assert len(told.split()) >= 2, field.name


@pytest.mark.parametrize("name", RANGES)
def test_whole_numbers_keep_to_their_range(name: str) -> None:
    low, high = RANGES[name]
    for value in (low, high):
        assert getattr(EngineConfig(**{name: value}), name) == value  # type: ignore[arg-type]
    for value in (low - 1, high + 1):
        advice = "; leave it out for as many as fit" if name == "gpu_layers" else ""
        said = f"^{name} is a whole number from {low} to {high}, got {value}{advice}$"
        with pytest.raises(ConfigError, match=said):
            EngineConfig(**{name: value})  # type: ignore[arg-type]


def test_help_tells_the_range_that_is_checked() -> None:
    for field in fields(EngineConfig):
        if field.name in RANGES:
            low, high = RANGES[field.name]
            assert field.metadata["help"].endswith((f"[{low}..{high}]", f"[>= {low}]")), field.name


def test_every_option_is_checked_by_its_name() -> None:
    """All that are no numbers or choices have a check of their own."""
    assert {f.name for f in fields(EngineConfig)} == {
        *RANGES,
        *CHOICES,
        "devices",
        "prefix_store",
        "tensor_split",
        "draft_model",
        "mmap",
        "verify",
        "measure_kernels",
    }
    for field in fields(EngineConfig):
        assert field.default is not MISSING
        with pytest.raises(ConfigError, match=f"^{field.name} is "):
            EngineConfig(**{field.name: object()})  # type: ignore[arg-type]


def test_the_context_is_decided_once() -> None:
    assert EngineConfig().for_model(100).num_ctx == 100
    assert EngineConfig().for_model(1 << 30).num_ctx == 4096
    assert EngineConfig(num_ctx=7).for_model(100).num_ctx == 7
    assert EngineConfig(num_ctx=200).for_model(100).num_ctx == 200


def test_the_engines_defaults_are_those_of_its_configuration() -> None:
    defaults = {name: parameter.default for name, parameter in inspect.signature(Engine).parameters.items()}
    assert {f.name: f.default for f in fields(EngineConfig)}.items() <= defaults.items()
    assert defaults.keys() - {f.name for f in fields(EngineConfig)} == {"model", "progress", "projector", "isolation"}
