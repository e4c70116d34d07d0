"""The results of `bench` as one JSON object: medians, every sample, and the conditions of the measurement."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

import numpy as np

from ollama_engine import __version__
from ollama_engine.cli.measure.bench.parts import Samples
from ollama_engine.cli.measure.bench.plan import BenchPlan
from ollama_engine.ml.device.device import ggml_version
from ollama_engine.runner.load.loading import Loaded

__all__ = ["conditions", "medians", "peak_rss_bytes", "rows"]


def medians(samples: Samples) -> dict[str, float | None]:
    """The median of each list of speeds; None for an empty list."""
    return {name: float(np.median(speeds)) if speeds else None for name, speeds in samples.items()}


def rows(name: str, values: Iterable[int], found: Iterable[Samples]) -> list[dict[str, Any]]:
    """Medians and samples for each value of what was varied, such as {"streams": 8, "prefill_tps": ...}."""
    return [{name: value, **medians(each), "samples": each} for value, each in zip(values, found, strict=True)]


def conditions(loaded: Loaded, plan: BenchPlan) -> dict[str, Any]:
    """Model, machine and plan. `graphs` counts those of one prompt and one answer, at all depths."""
    return {
        "model": loaded.path,
        "architecture": loaded.gguf.architecture,
        "threads": loaded.backend.threads,
        "version": __version__,
        "ggml_version": ggml_version(),
        "n_prompt": plan.n_prompt,
        "n_gen": plan.n_gen,
        "repetitions": plan.repetitions,
        "warmup": plan.warmup,
        "num_ctx": plan.num_ctx,
        "batch_size": loaded.executor.batch_size,
        "flash_attention": loaded.executor.flash_attention,
        "kv_cache_type": loaded.config.kv_cache_type,
        "mmap": loaded.config.mmap,
        "devices": [device.name for device in loaded.backend.devices],
        "memory": [asdict(device) for device in loaded.memory().devices],
        "graphs": asdict(loaded.executor.counts),
    }


def peak_rss_bytes(status: str | os.PathLike[str] = "/proc/self/status") -> int | None:
    """Peak resident memory of this process, mapped model pages included; None where the system does not say.

    On Linux, reads /proc: getrusage's figure there is inherited from the parent process.
    """
    try:
        with open(status, encoding="ascii", errors="replace") as entries:
            for entry in entries:
                if entry.startswith("VmHWM:"):
                    return int(entry.split()[1]) * 1024
    except OSError:
        pass
    try:
        import resource  # noqa: PLC0415 (Windows has none)
    except ImportError:
        return None
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
