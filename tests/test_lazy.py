"""Packages give their names when they are asked for, their modules too, and nothing else."""

from __future__ import annotations

import pytest

import ollama_engine
from ollama_engine import ml, sample
from ollama_engine.lazy import lazy_names


def test_a_name_is_what_its_module_has_and_a_home_of_its_own_name_is_the_module() -> None:
    get, _ = lazy_names("ollama_engine.ml.gguf", {"Metadata": "metadata", "metadata": "metadata"})
    assert get("metadata") is __import__("ollama_engine.ml.gguf.metadata").ml.gguf.metadata
    assert get("Metadata") is get("metadata").Metadata  # type: ignore[attr-defined]


@pytest.mark.parametrize("package", [ollama_engine, ml, sample], ids=lambda package: str(package.__name__))
def test_every_public_name_is_there_and_no_other(package: object) -> None:
    public = package.__all__  # type: ignore[attr-defined]
    assert all(getattr(package, name) is not None for name in public)
    assert sorted(public) == dir(package)
    with pytest.raises(AttributeError, match=r"'ollama_engine.*' has no attribute 'absent'"):
        package.absent  # type: ignore[attr-defined]  # noqa: B018
