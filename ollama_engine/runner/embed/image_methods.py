"""ImageMethods: the methods of an Engine that make vectors of images, for threads and for asyncio."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ollama_engine.errors import ConfigError, Option, UnsupportedModelError
from ollama_engine.runner.request.options import RequestOptions

if TYPE_CHECKING:
    from ollama_engine.input import FloatArray
    from ollama_engine.runner.core.engine_thread import EngineThread
    from ollama_engine.runner.embed.images import ImageBatcher, ImageCall
    from ollama_engine.runner.load.loading import Loaded
    from ollama_engine.runner.load.vision import ImageVectors
    from ollama_engine.segments import ImageSource

__all__ = ["ImageMethods"]


class ImageMethods:
    """Mixin of Engine."""

    if TYPE_CHECKING:
        _engine_thread: EngineThread

        def _open(self) -> Loaded:
            """The loaded model; Engine defines it. Raises ClosedError after `close`."""

    def __init__(self) -> None:
        super().__init__()
        # A finaliser that runs in the middle of making it may ask for vectors too.
        self._making_batcher = threading.RLock()
        self._image_batcher: ImageBatcher | None = None

    def embed_image(
        self, images: ImageSource | Sequence[ImageSource], *, normalize: bool = True, priority: int = 0,
        timeout: float | None = None,
    ) -> FloatArray:  # fmt: skip
        """Vectors of images: float32 [n, dim] for a list or tuple of them, [dim] for one.

        For models that have them: CLIP (the projected class token) and SigLIP (the pooled patches).

        Args:
            images: a path, the bytes of a file, a PIL.Image or an array [height, width, 3]; or several of them.
            normalize: whether vectors get length 1, so that their products are cosines.
            priority: higher is served first; no call starves.
            timeout: seconds after which the call ends with DeadlineError. None: never.

        Raises ImageError for what is no image, UnsupportedModelError for a model that gives no vectors of images, and
        ConfigError for options out of range. Raises ComputeError when the model computes NaN, EngineBusyError when too
        many calls wait, DeadlineError when `timeout` is over, and ClosedError when the Engine is closed.
        """
        vectors = self._image_vectors()
        call = self._image_call(vectors, images, RequestOptions(priority=priority, timeout=timeout), normalize)
        return call.finished(call.wait(), vectors.n_embd, normalize=normalize)

    async def aembed_image(
        self, images: ImageSource | Sequence[ImageSource], *, normalize: bool = True, priority: int = 0,
        timeout: float | None = None,
    ) -> FloatArray:  # fmt: skip
        """`embed_image` for asyncio: the same arguments, result and errors. Cancelling the task cancels the request."""
        vectors = self._image_vectors()
        call = self._image_call(vectors, images, RequestOptions(priority=priority, timeout=timeout), normalize)
        return call.finished(await call.coming(), vectors.n_embd, normalize=normalize)

    def _image_vectors(self) -> ImageVectors:
        loaded = self._open()
        if loaded.image_vectors is None:
            raise UnsupportedModelError(
                f"architecture {loaded.model.architecture} gives no vectors of images; CLIP and SigLIP models do"
            )
        return loaded.image_vectors

    def _image_call(
        self,
        vectors: ImageVectors,
        images: ImageSource | Sequence[ImageSource],
        options: RequestOptions,
        normalize: object,
    ) -> ImageCall:
        """A call for the rows of images."""
        from ollama_engine.runner.embed.images import ImageBatcher, ImageCall  # noqa: PLC0415 (few embed images)

        if not isinstance(normalize, bool):
            raise ConfigError(Option("normalize"), f" is True or False, got {normalize!r}")
        with self._making_batcher:
            if self._image_batcher is None:
                self._image_batcher = ImageBatcher(self._engine_thread.monitor)
        listed = isinstance(images, (list, tuple))
        files: Sequence[ImageSource] = images if listed else [images]  # type: ignore[assignment,list-item]
        name = "images" if listed else None
        return ImageCall(files, vectors.reader, options, self._engine_thread, self._image_batcher, name)
