"""The tensor layer: the only code that holds ggml's pointers.

Rooms, each importing from those below it only (tests/house/test_rooms.py)
    weights/   weights         a model file's weights, spread over storages; plans of what is read, mapped, repacked
               kernel_choice   which kernel multiplies with which weights
    ops/       every operation, checked before ggml sees it; the package itself is their index
    graph/     backend         Backend: devices, threads and scheduler of one engine; owner of last resort of all here
               storage         Storage: tensors that outlive graphs (a cache, weights), allocated or mapped as a whole
               types, tensor   element types and shapes; Tensor; Owner, the base of what owns tensors and can be closed
               context         Context: makes the tensors of one graph; `computation`, its base, plans and computes it
               graph_walk      checks of a graph that ggml's memory planner omits
               window          zero-copy, read-only views of results; they keep the memory alive
    threads/   thread pools, and how many of their threads are worth waking on a busy machine
    workers/   devices of other processes and machines
    device/    device          the devices of this machine; ggml's libraries are loaded on the first question for them
               placement       pure decisions: which devices, which layer where
               memory, hostmem memory planned and taken; memory that the system still has
    gguf/      model files, checked and read
    ggml/      declarations of ggml's C interface; a test compares them with its headers

Lifetimes
    A Backend closes what was made on it. A closed owner (Context, Storage, Weights) makes its tensors raise
    ClosedError; nothing reads freed memory. A graph that uses a closed storage raises when it is computed. One context
    at a time has memory on a backend: allocating another gives up the outputs of the first. Everything can be closed
    twice, and closes with its last reference. An array of Tensor.mapped keeps the memory it shows, closed or not. A
    Backend does not survive a fork: the child makes its own.

Threads
    Any object may be used from any thread. Computing, allocating and loading release the GIL and take turns on their
    backend; building another graph goes on meanwhile. Two backends share nothing. Values of a graph that is being
    computed, and of storages, are exchanged before or after it.
    Where Python has no lock, a context is built by the thread that made it.

Errors
    A wrong argument raises TypeError or ShapeError, missing memory NoMemoryError, a closed object ClosedError. No call
    ends the process.

The names below are imported when they are first used, and ggml's libraries with them.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from ollama_engine.errors import DeviceError
from ollama_engine.lazy import lazy_names

try:
    from ollama_engine.ml.device.cpu_check import missing_instructions
except ModuleNotFoundError as error:  # Python looks in the current folder first, a clone's too
    if getattr(sys, "frozen", False):
        raise ImportError(
            "this frozen program lacks the compiled modules of ollama_engine; with PyInstaller, add "
            "--collect-all ollama_engine --collect-all llguidance"
        ) from error
    raise ImportError(
        f"{__path__[-1]} has no compiled modules: it is a folder of sources. Start Python in another folder, where the "
        "installed ollama_engine is imported, or build in this one with `make build` and use its .venv/bin/python"
    ) from error

if TYPE_CHECKING:
    from ollama_engine.ml import ops
    from ollama_engine.ml.device.device import devices
    from ollama_engine.ml.device.device_info import Device
    from ollama_engine.ml.device.placement import BackendParams
    from ollama_engine.ml.graph.backend import Backend
    from ollama_engine.ml.graph.context import Context
    from ollama_engine.ml.graph.storage import Storage
    from ollama_engine.ml.graph.tensor import Tensor

__all__ = ["Backend", "BackendParams", "Context", "Device", "Storage", "Tensor", "devices", "ops"]

_HOMES = {
    "Backend": "graph.backend",
    "BackendParams": "device.placement",
    "Context": "graph.context",
    "Device": "device.device_info",
    "Storage": "graph.storage",
    "Tensor": "graph.tensor",
    "devices": "device.device",
    "ops": "ops",
}

if _missing := missing_instructions():
    raise DeviceError(
        f"this build of ollama_engine is for CPUs with {', '.join(_missing)}, which this one lacks; build it on this "
        "machine, or for any CPU with the option OLLAMA_ENGINE_PORTABLE=ON (see Wheels for any CPU in CONTRIBUTING.md)"
    )

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
