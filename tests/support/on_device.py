"""`pytest --on-device NAME`: the tests that are named, with all layers of their models on a device of this machine.

    pytest --on-device CUDA0 tests/models/test_contract.py tests/session

`ollama-engine devices` lists the names. As with `--on-workers`, weights of the demo models and caches that are not
asked for otherwise are of float32, tests marked `cpu_only` are left out, and an engine that names a device has that.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ollama_engine.errors import ConfigError
from tests.support.on_workers import WorkerPool

__all__ = ["put_engines_on_device"]


def put_engines_on_device(name: str) -> WorkerPool:
    """Have models be loaded onto the device. To be called before test modules are imported.

    Returns what holds the copies of the demo models, to be closed; it has no workers.
    """
    import ollama_engine.engine  # noqa: PLC0415 (not needed without the option)
    from ollama_engine.runner.load import loading  # noqa: PLC0415

    copies, load = WorkerPool(), loading.load

    def load_on_device(source: Any, config: Any, *args: Any, **options: Any) -> Any:
        if config.devices or config.gpu_layers is not None or config.tensor_split is not None:
            return load(source, config, *args, **options)
        cache = "f32" if config.kv_cache_type == "f16" else config.kv_cache_type
        there = replace(config, devices=(name,), gpu_layers=None, kv_cache_type=cache)
        try:
            return load(copies.float_copy(source), there, *args, **options)
        except ConfigError as error:
            if "flash attention" in str(error) or "flash_attention is on" in str(error):
                pytest.skip(f"{name} lacks it: {error}")  # its kernels want heads of other sizes than tiny models have
            raise

    loading.load = load_on_device  # type: ignore[assignment]
    ollama_engine.engine.load = load_on_device  # type: ignore[assignment]
    return copies
