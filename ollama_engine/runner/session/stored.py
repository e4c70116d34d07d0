"""Opens the prefix store of a loaded model: whose keys and values are stored where, and what tells them apart."""

from __future__ import annotations

import logging
import os
import shutil
import sys
from collections.abc import Callable

from ollama_engine.ml.weights.kernel_choice import kernels_of
from ollama_engine.models import FitsContext
from ollama_engine.runner.core.engine_core import EngineCore
from ollama_engine.runner.core.engine_thread import EngineThread
from ollama_engine.runner.core.prefix_reads import PrefixReads
from ollama_engine.runner.core.prefix_writes import PrefixWrites
from ollama_engine.runner.core.stored_prefixes import StoredPrefixes
from ollama_engine.runner.core.tasks import Update
from ollama_engine.runner.load.loading import Loaded
from ollama_engine.runner.prefix_store.block_folder import BlockFolder
from ollama_engine.runner.prefix_store.block_keys import root_key
from ollama_engine.runner.prefix_store.folder_contents import make_prefix_folder
from ollama_engine.runner.prefix_store.prefix_store import PrefixStore, StoreLayout
from ollama_engine.runner.session.build import build_digest
from ollama_engine.runner.session.identity import ModelIdentity

__all__ = ["attach_prefix_store"]

log = logging.getLogger(__name__)

MOST_BYTES = 4 << 30
"""Most bytes of the folder where `prefix_store_bytes` is None."""


def attach_prefix_store(loaded: Loaded, identity: ModelIdentity, core: EngineCore, thread: EngineThread) -> None:
    """Have an engine that has not started use the store that its options ask for.

    Without effect where this model's cache has no parts to store, and where the user has no cache folder. Raises
    OSError where a folder that the caller has named cannot be made.
    """
    option, saveable = str(loaded.config.prefix_store), loaded.cache.saveable
    if saveable is None:
        log.info("prefixes are not stored: this model's cache cannot be saved")
        return
    try:
        folder = make_prefix_folder(option)
        free = shutil.disk_usage(folder).free
    except OSError as error:
        if option != "on":
            raise
        log.info("prefixes are not stored: %s", error)
        return
    most = loaded.config.prefix_store_bytes
    most = min(MOST_BYTES, free // 10) if most is None else most
    layout = StoreLayout(saveable.row_bytes, saveable.first_seen, saveable.image_kinds)
    if layout.block_bytes > most:
        log.warning("prefixes are not stored: a block of this model takes %d bytes, and the store %d at most "
                    "(prefix_store_bytes)", layout.block_bytes, most)  # fmt: skip
        return
    root = _root(loaded, identity, layout)
    store = PrefixStore(BlockFolder(folder, root, most, os.path.basename(loaded.path)), root, layout)

    def post(work: Callable[[], object]) -> None:
        thread.post(Update(lambda core: work()))

    caches, monitor = core.cache_manager, core.monitor
    core.queue.stored = StoredPrefixes(
        PrefixReads(store, saveable, caches, monitor, core.scrap, post),
        PrefixWrites(store, saveable, caches, monitor, post),
    )


def _root(loaded: Loaded, identity: ModelIdentity, layout: StoreLayout) -> bytes:
    """The key of no inputs: all that shapes keys and values, and the bits in which they come out."""
    config = loaded.config
    kernels = kernels_of(loaded.backend)
    # Models that fit themselves to a context compute otherwise for a longer one.
    context = config.num_ctx if isinstance(loaded.model, FitsContext) else None
    devices = [f"{device.name} {device.description}" for device in loaded.backend.devices]
    return root_key(
        identity.fingerprint, build_digest(), config.kv_cache_type, repr(layout.row_bytes), sys.byteorder,
        repr(context), repr(devices), repr(sorted(kernels.borders.items())), repr(kernels.attention),
        repr(loaded.executor.flash_attention),
    )  # fmt: skip
