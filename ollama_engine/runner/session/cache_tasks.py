"""Work on a session's part of the cache, which the engine thread does while no step is in flight."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ollama_engine.input import FloatArray, MediaItem
from ollama_engine.runner.core.engine_core import EngineCore
from ollama_engine.runner.request.inputs import Inputs
from ollama_engine.runner.schedule.pinned_prefix import PinnedPrefix, Saved

__all__ = ["copy_out", "encode", "fork_into", "put_back", "trim_to"]


def trim_to(pinned: PinnedPrefix, inputs: Inputs) -> Callable[[EngineCore], None]:
    """Remove everything beyond these inputs from the session's sequence."""
    return lambda core: core.cache_manager.pinned.trim(pinned, inputs)


def fork_into(pinned: PinnedPrefix, other: PinnedPrefix, inputs: Inputs) -> Callable[[EngineCore], None]:
    """Share the cells of these inputs with another session."""

    def work(core: EngineCore) -> None:
        core.cache_manager.pinned.trim(pinned, inputs)
        core.cache_manager.pinned.fork(pinned, other, core.monitor.clock())

    return work


def encode(item: MediaItem) -> Callable[[EngineCore], FloatArray]:
    """Encode an image. A task for each, so that others are computed between two images."""
    return lambda core: item.embeddings()


def copy_out(
    pinned: PinnedPrefix, inputs: Inputs, held: Sequence[FloatArray] = ()
) -> Callable[[EngineCore], tuple[Saved, tuple[FloatArray, ...]]]:
    """Copy keys and values, and the embeddings of media among the inputs.

    `held`: embeddings that `encode` made, which the encoder cache must not lose before.
    """

    def work(core: EngineCore, _held: Sequence[FloatArray] = held) -> tuple[Saved, tuple[FloatArray, ...]]:
        core.cache_manager.pinned.trim(pinned, inputs)
        return core.cache_manager.pinned.save(pinned), tuple(span.item.embeddings() for span in inputs.media)

    return work


def put_back(pinned: PinnedPrefix, inputs: Inputs, saved: Saved) -> Callable[[EngineCore], None]:
    """Put copied keys and values back into the cache."""

    def work(core: EngineCore) -> None:
        core.scrap()
        core.cache_manager.pinned.restore(pinned, inputs, saved, core.monitor.clock())

    return work
