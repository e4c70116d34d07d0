"""What is checked of a model once its tensors are there."""

from __future__ import annotations

import logging

from ollama_engine.config import EngineConfig
from ollama_engine.errors import ModelFormatError
from ollama_engine.ml.gguf.gguf_file import IMAGE_PARTS, SOUND_PARTS, GGUFFile
from ollama_engine.models import EmbedsImages, FitsContext, Model
from ollama_engine.runner.load.memory_plan import num_ctx_of
from ollama_engine.runner.load.projector import JoinedFile
from ollama_engine.runner.load.vision import reads_media

__all__ = ["check_model", "fit_context"]

log = logging.getLogger(__name__)


def check_model(model: Model, gguf: GGUFFile) -> None:
    if model.n_vocab < 1 and not isinstance(model, EmbedsImages):
        raise ModelFormatError("the model has no vocabulary")
    unused = list(model.unused_weights)
    if any(name.startswith(SOUND_PARTS) for name in unused):
        log.warning("the file has a part that reads sound, which is not supported: it is left aside")
        unused = [name for name in unused if not name.startswith(SOUND_PARTS)]
    images = [name for name in unused if name.startswith(IMAGE_PARTS)]
    if images and reads_media(model) is None and not isinstance(model, EmbedsImages):
        if isinstance(gguf, JoinedFile):
            raise ModelFormatError(
                f"the projector has no tensor of patches that {gguf.architecture} reads, but {', '.join(images[:4])}; "
                "it is damaged, or of another model"
            )
        log.warning("the file has a part that reads images, which is not supported yet: it answers text only")
        unused = [name for name in unused if name not in images]
    if unused:
        shown = ", ".join(unused[:8])
        log.warning("%d tensors of the file are not used by architecture %s: %s%s", len(unused),
                    gguf.architecture, shown, " ..." if len(unused) > 8 else "")  # fmt: skip


def fit_context(model: Model, config: EngineConfig) -> None:
    """Tell the model how long texts may be, and warn of more than it was trained for."""
    if isinstance(model, FitsContext):
        model.fit_context(num_ctx_of(config))
    if num_ctx_of(config) > model.context_length:
        log.warning("num_ctx %d is more than the %d tokens the model was trained for; answers get worse beyond them",
                    num_ctx_of(config), model.context_length)  # fmt: skip
