"""Architectures are found by name: those built in, and those that other packages bring."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys

import pytest

from ollama_engine.errors import UnsupportedModelError
from ollama_engine.models import Model, architectures, model_class, registry


@pytest.mark.parametrize("architecture", architectures())
def test_names_lead_to_classes_of_that_name(architecture: str) -> None:
    found = model_class(architecture)
    assert found.architecture == architecture
    for name in ("n_vocab", "context_length", "cache_layers", "forward"):
        assert hasattr(found, name), f"{found} lacks what {Model} promises"


def test_another_package_adds_an_architecture(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = importlib.metadata.EntryPoint("mine", "ollama_engine.models.llama:Llama", registry.ENTRY_POINTS)
    monkeypatch.setattr(
        importlib.metadata, "entry_points", lambda group: [entry] if group == registry.ENTRY_POINTS else []
    )
    assert "mine" in architectures()
    assert model_class("mine").__name__ == "Llama"
    with pytest.raises(UnsupportedModelError, match=r"'theirs' is not supported; supported: .*mamba2, mine"):
        model_class("theirs")


@pytest.mark.parametrize(
    ("architecture", "reason"), [("eagle3", "it is an EAGLE-3 head"), ("gemma4-assistant", "it dr")]
)
def test_what_only_drafts_is_refused_with_what_to_do_alone(architecture: str, reason: str) -> None:
    with pytest.raises(
        UnsupportedModelError, match=f"'{architecture}' cannot be run: {reason}.* as its draft_model"
    ) as got:
        model_class(architecture)
    assert "supported" not in str(got.value)


def test_a_model_is_imported_when_it_is_asked_for() -> None:
    script = """
import sys
from ollama_engine.models import architectures, model_class
assert "llama" in architectures() and "ollama_engine.models.llama" not in sys.modules
model_class("llama")
assert "ollama_engine.models.llama" in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
