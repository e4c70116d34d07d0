"""ImageEncoder: computes the embeddings of images, each in a graph of its own. The engine's thread owns it.

What an image takes at most is found out by building the graphs of the largest ones: `measure_images`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from ollama_engine.errors import ComputeError, ModelFormatError, NoMemoryError
from ollama_engine.input import FloatArray, PreparedImage
from ollama_engine.ml.graph.backend import Backend
from ollama_engine.ml.graph.context import Context
from ollama_engine.ml.graph.tensor import Tensor
from ollama_engine.models import ImageTower, VariesGraphs

__all__ = ["ImageEncoder", "ImageMemory", "measure_images", "prepared_bytes"]


class ImageMemory(NamedTuple):
    """Most bytes that one image takes, by purpose."""

    graph: int = 0
    """Intermediate results of its graph, on the device of the tower."""
    constants: int = 0
    """Host memory of the graph's constants, which another device gets a copy of."""
    prepared: int = 0
    """Host memory of its arrays."""
    embeddings: int = 0
    """Host memory of its embeddings."""


def measure_images(backend: Backend, tower: ImageTower, use: Callable[[Context, Tensor], None]) -> ImageMemory:
    """What the largest images take. `use` is called with the graph of each, and its result; takes no memory itself."""
    most = ImageMemory()
    for image in _worst_images(tower):
        with Context(backend) as ctx:
            out = tower.encode_multimodal(ctx, image)
            ctx.forward(out)
            use(ctx, out)
            nbytes = out.dim(0) * out.dim(1) * np.dtype(np.float32).itemsize
            graph = sum(ctx.measure().values())
            found = ImageMemory(graph, ctx.constant_bytes, prepared_bytes(image), nbytes)
            most = ImageMemory(*map(max, most, found))
    return most


def _worst_images(tower: ImageTower) -> Iterator[PreparedImage]:
    """The largest image, and smaller ones with other graphs."""
    yield tower.largest_image()
    if isinstance(tower, VariesGraphs):
        yield from tower.smaller_images()


def prepared_bytes(image: PreparedImage) -> int:
    """Bytes of an image's arrays."""
    return sum(array.nbytes for array in image.arrays.values())


class ImageEncoder:
    """Computes while no step does.

    `row_width`: numbers in a row of embeddings that the text model takes.
    """

    def __init__(self, backend: Backend, tower: ImageTower, row_width: int) -> None:
        self._backend = backend
        self._row_width = row_width
        self._tower = tower
        self.memory = ImageMemory()
        """What an image takes at most, once `reserve` was called."""

    def reserve(self) -> None:
        """Take the memory for the largest image now, and for smaller ones with other graphs.

        Raises NoMemoryError, and ModelFormatError where the embeddings are not as wide as those of tokens.
        """
        try:
            self.memory = measure_images(self._backend, self._tower, self._reserve)
        except NoMemoryError:
            raise
        except MemoryError as error:  # numpy's
            raise NoMemoryError(f"the largest image that the file allows does not fit into memory: {error}") from error

    def _reserve(self, ctx: Context, out: Tensor) -> None:
        if out.dim(0) != self._row_width:
            raise ModelFormatError(
                f"the part that reads images makes embeddings of {out.dim(0)} numbers, and the text model takes "
                f"{self._row_width}; they belong to different models"
            )
        ctx.reserve()

    def encode(self, image: PreparedImage) -> FloatArray:
        """Embeddings float32 [rows, row_width]. Raises what the model raises, ComputeError for NaN, NoMemoryError."""
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
