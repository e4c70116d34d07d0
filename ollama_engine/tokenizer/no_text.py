"""The tokenizer of a model that reads no text: `tokenizer.ggml.model` no_vocab, as llama.cpp calls it."""

from __future__ import annotations

from typing import NoReturn

import numpy as np

from ollama_engine.errors import TokenizerError
from ollama_engine.tokenizer.checkpoint import Checkpoint
from ollama_engine.tokenizer.vocab import Vocabulary

__all__ = ["NO_TEXT", "NoText"]


class NoText:
    """Refuses every text. See `base.TextModel`."""

    keeps_all = False  # no text is too long: it is refused for what it is

    def encode(self, text: str, *, prefix: bool, checkpoint: Checkpoint = None) -> NoReturn:
        """Raises TokenizerError."""
        raise TokenizerError("this model reads no text, and has no vocabulary; it reads images (Engine.embed_image)")

    def special_text(self, text: str) -> str:
        """There are no tokens."""
        return text

    def normal_bytes(self, text: str) -> bytes:
        """There are no tokens."""
        return text.encode()


NO_TEXT = Vocabulary(
    model="no_vocab", texts=[], types=np.empty(0, np.uint8), scores=None, spec=None, bos_id=None, eos_id=None,
    unknown_id=None, eog_ids=frozenset(), add_bos=False, add_eos=False, add_space_prefix=False, lowercase=False,
    canonical=False, strip_accents=False, guarded_ids=frozenset(), lstrip_ids=frozenset(), rstrip_ids=frozenset(),
)  # fmt: skip
"""A vocabulary without tokens."""
