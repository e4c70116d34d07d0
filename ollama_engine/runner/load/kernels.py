"""Chooses kernels for a model: by times measured on this machine, which are kept in a file, or by the built-in table.

The table decides where measuring is switched off, where devices other than the CPU compute, where the user's cache
folder cannot be written (or each load would decide anew), and for what is too small for the memory to matter.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING

from ollama_engine import __version__
from ollama_engine.config import EngineConfig
from ollama_engine.ml.device import placement
from ollama_engine.ml.device.device import devices as all_devices
from ollama_engine.ml.device.placement import BackendParams
from ollama_engine.ml.gguf.gguf_file import GGUFFile
from ollama_engine.ml.gguf.model_file import ModelFile
from ollama_engine.ml.graph.backend import Backend
from ollama_engine.ml.graph.tensor import Tensor
from ollama_engine.ml.threads.machine_load import waiting_threads
from ollama_engine.ml.weights.kernel_choice import BY_TABLE, KernelChoice
from ollama_engine.ml.weights.kernel_measure import measure
from ollama_engine.ml.weights.kernel_samples import Kind, Weighed, kinds_of
from ollama_engine.ml.weights.kernel_timings import Timings, decide
from ollama_engine.ml.weights.weight_plan import OUTPUT, TIED

if TYPE_CHECKING:
    from ollama_engine.ml.weights.kernel_store import TimingsFile

__all__ = ["choose_kernels", "kept_kernels", "rows_are_alike", "timings_file"]

log = logging.getLogger(__name__)

NO_PRODUCTS = ("norm.weight", ".bias")
"""Ends of the names of weights that each row is multiplied by or added to for itself."""
MEASURE_SECONDS = 0.14
"""Time to measure in; with what comes before and after it is less than 0.15 s."""


def timings_file(threads: int) -> TimingsFile:
    """Where the times for so many threads are kept."""
    from ollama_engine.ml.weights.kernel_store import TimingsFile  # noqa: PLC0415 (10 ms; few models)

    return TimingsFile.of_user(threads, __version__)


def choose_kernels(gguf: GGUFFile, config: EngineConfig) -> KernelChoice:
    """The kernels for this model. Never raises for a file of times: what is wrong with it is logged."""
    if not config.measure_kernels or not BY_TABLE.borders or not _cpu_alone(config):
        return BY_TABLE
    weighed = kinds_of(gguf.tensors.values())
    if not weighed:
        return BY_TABLE
    try:
        timings = _kept_or_measured(timings_file(_threads(config)), gguf, weighed)
    except OSError as error:
        log.info("kernels are chosen by the table: their times cannot be kept: %s", error)
        return BY_TABLE
    mine = {few: times for few, times in timings.items() if Kind(few.dtype, few.experts) in weighed}
    choice = decide(BY_TABLE, mine)
    log.info("kernels: %s", "; ".join(choice.measured) or "by the table", extra={"kernels": choice.measured})
    return choice


def rows_are_alike(kernels: KernelChoice, weights: Mapping[str, Tensor], rows: int) -> bool:
    """Whether a row of each product of an answer's step has the same bits alone and among up to so many.

    Not where all kernels are ggml's: its products of some types depend on the number of rows.
    """
    output = TIED if OUTPUT not in weights else OUTPUT
    return bool(kernels.borders) and all(
        kernels.same_bits(weight, rows)
        for name, weight in weights.items()
        if (name.startswith("blk.") and not name.endswith(NO_PRODUCTS)) or name == output
    )


def kept_kernels(config: EngineConfig) -> tuple[str, KernelChoice]:
    """The file of times for these options, and the choice by all of them. Raises ValueError for damage, OSError."""
    file = timings_file(_threads(config))
    return str(file.path), decide(BY_TABLE, file.read())


def _cpu_alone(config: EngineConfig) -> bool:
    others = [device for device in all_devices() if device.kind != "cpu"] if config.devices is None else config.devices
    return config.gpu_layers == 0 or not others


def _threads(config: EngineConfig) -> int:
    """How many the engine will have; it also logs where that is less than the options say."""
    return placement.choose_threads(None if config.threads is None else min(config.threads, placement.usable_cpus()))


def _kept_or_measured(file: TimingsFile, gguf: GGUFFile, weighed: Weighed) -> Timings:
    """The times that are kept, with those of the kinds that are missing there. Raises OSError."""
    timings = _read(file)
    known = {Kind(few.dtype, few.experts) for few in timings}
    missing = {kind: mine for kind, mine in weighed.items() if kind not in known}
    if not missing:
        return timings
    if (waiting_threads() or 0) > 0:
        log.info("kernels are chosen by the table: the machine is too busy to measure")
        return timings
    file.check_writable()
    return file.add(_measure(gguf, missing, file.threads))


def _read(file: TimingsFile) -> Timings:
    """The times that are kept; none where the file is damaged, which is logged. Raises OSError."""
    try:
        return file.read()
    except ValueError as error:
        log.warning("%s; kernels are measured anew", error)
        return {}


def _measure(gguf: GGUFFile, weighed: Weighed, threads: int) -> Timings:
    with ExitStack() as undo:
        backend = undo.enter_context(Backend(BackendParams(threads=threads, devices=())))
        files = [ModelFile(path) for path in gguf.files]
        for file in files:
            undo.callback(file.close)
        return measure(backend, [file.mapping() for file in files], weighed, MEASURE_SECONDS)
