"""What needs Ray says so where it is not installed."""

from __future__ import annotations

import sys

import pytest

import ollama_engine.ray


@pytest.mark.parametrize("name", ["build", "application", "ReplicaOptions"])
def test_ray_is_missing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in [module for module in sys.modules if module.partition(".")[0] == "ray"]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "ollama_engine.ray.application", raising=False)
    with pytest.raises(ModuleNotFoundError, match=f"{name} needs Ray, which is not installed: pip install"):
        ollama_engine.ray.__getattr__(name)
