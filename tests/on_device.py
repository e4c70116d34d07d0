"""`pytest --on-device NAME`: the tests that are named, with all layers of their models on a device of this machine.

    pytest --on-device CUDA0 tests/models/test_contract.py tests/session

`ollama-engine devices` lists the names. What only the CPU promises fails there, as with `--on-workers`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

__all__ = ["put_engines_on_device"]


def put_engines_on_device(name: str) -> None:
    """Have every model of this process loaded onto the device. To be called before test modules are imported."""
    import ollama_engine.engine  # noqa: PLC0415 (not needed without the option)
    from ollama_engine.runner.load import loading  # noqa: PLC0415

    load = loading.load

    def load_on_device(source: Any, config: Any, *args: Any, **options: Any) -> Any:
        return load(source, replace(config, devices=(name,), gpu_layers=None), *args, **options)

    loading.load = load_on_device  # type: ignore[assignment]
    ollama_engine.engine.load = load_on_device  # type: ignore[assignment]
