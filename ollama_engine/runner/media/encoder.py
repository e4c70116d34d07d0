"""ImageEncoder: computes the embeddings of images, each in a graph of its own. The engine's thread owns it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ollama_engine.errors import ComputeError, ModelFormatError, NoMemoryError
from ollama_engine.input import FloatArray, PreparedImage
from ollama_engine.ml.graph.backend import Backend
from ollama_engine.ml.graph.context import Context
from ollama_engine.models import ImageTower, VariesGraphs

__all__ = ["ImageEncoder"]


class ImageEncoder:
    """Computes while no step does.

    `n_embd`: length of a token's embedding. `moved` is called before each graph: it takes the memory of graphs that
    were allocated on this backend before.
    """

    def __init__(self, backend: Backend, tower: ImageTower, n_embd: int, moved: Callable[[], None]) -> None:
        self._backend = backend
        self._n_embd = n_embd
        self._tower = tower
        self._moved = moved

    def reserve(self) -> None:
        """Take the memory for the largest image now, and for smaller ones with other graphs.

        Raises NoMemoryError, and ModelFormatError where the embeddings are not as wide as those of tokens.
        """
        try:
            self._reserve_for(self._tower.largest_image())
            if isinstance(self._tower, VariesGraphs):
                for image in self._tower.smaller_images():
                    self._reserve_for(image)
        except NoMemoryError:
            raise
        except MemoryError as error:  # numpy's
            raise NoMemoryError(f"the largest image that the file allows does not fit into memory: {error}") from error

    def _reserve_for(self, image: PreparedImage) -> None:
        with Context(self._backend) as ctx:
            out = self._tower.encode_multimodal(ctx, image)
            if out.dim(0) != self._n_embd:
                raise ModelFormatError(
                    f"the part that reads images makes embeddings of {out.dim(0)} numbers, and the text model takes "
                    f"{self._n_embd}; they belong to different models"
                )
            ctx.forward(out)
            ctx.reserve()

    def encode(self, image: PreparedImage) -> FloatArray:
        """Embeddings float32 [rows, n_embd]. Raises what the model raises, ComputeError for NaN, NoMemoryError."""
        self._moved()
        with Context(self._backend) as ctx:
            out = self._tower.encode_multimodal(ctx, image)
            ctx.forward(out)
            ctx.alloc()
            ctx.compute()
            # One row comes as a vector. The copy owns its memory: who reads rows of it holds all of it.
            rows = np.array(out.numpy().reshape(-1, out.dim(0)), np.float32)
        if not np.isfinite(rows).all():
            raise ComputeError("the model computes NaN or infinity for this image; its file may be damaged")
        return rows
