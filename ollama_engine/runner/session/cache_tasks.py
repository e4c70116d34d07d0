"""What a session has the engine's thread do with its part of the cache, while nothing computes."""

from __future__ import annotations

from collections.abc import Callable

from ollama_engine.input import FloatArray
from ollama_engine.runner.core.engine_core import EngineCore
from ollama_engine.runner.prefix.pinned_prefix import PinnedPrefix, Saved
from ollama_engine.runner.schedule.inputs import Inputs

__all__ = ["copy_out", "fork_into", "put_back", "trim_to"]


def trim_to(pinned: PinnedPrefix, inputs: Inputs) -> Callable[[EngineCore], None]:
    """What the cache has beyond these inputs leaves it."""
    return lambda core: core.cache_manager.trim(pinned, inputs)


def fork_into(pinned: PinnedPrefix, other: PinnedPrefix, inputs: Inputs) -> Callable[[EngineCore], None]:
    """Another session shares the cells of these inputs."""

    def work(core: EngineCore) -> None:
        core.cache_manager.trim(pinned, inputs)
        core.cache_manager.fork(pinned, other, core.monitor.clock())

    return work


def copy_out(pinned: PinnedPrefix, inputs: Inputs) -> Callable[[EngineCore], tuple[Saved, tuple[FloatArray, ...]]]:
    """A copy of keys and values, and the embeddings of the media among the inputs."""

    def work(core: EngineCore) -> tuple[Saved, tuple[FloatArray, ...]]:
        core.cache_manager.trim(pinned, inputs)
        return core.cache_manager.save(pinned), tuple(span.item.embeddings() for span in inputs.media)

    return work


def put_back(pinned: PinnedPrefix, inputs: Inputs, saved: Saved) -> Callable[[EngineCore], None]:
    """Keys and values that were copied out lie in the cache again."""

    def work(core: EngineCore) -> None:
        core.scrap()
        core.cache_manager.restore(pinned, inputs, saved, core.monitor.clock())

    return work
