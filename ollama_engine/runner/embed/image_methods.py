"""ImageMethods: the methods of an Engine that make vectors of images, for threads and for asyncio."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ollama_engine.errors import ConfigError, Option
from ollama_engine.runner.request.options import RequestOptions

if TYPE_CHECKING:
    from ollama_engine.runner.core.engine_thread import EngineThread
    from ollama_engine.runner.embed.call import EmbeddingCall
    from ollama_engine.runner.embed.images import ImageSubmission
    from ollama_engine.runner.embed.pooling import FloatArray
    from ollama_engine.runner.load.loading import Loaded
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
        self._making_images = threading.RLock()
        self._image_submission: ImageSubmission | None = None

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

        Raises ImageError for what is no image; UnsupportedModelError for a model that gives no vectors of images;
        ConfigError for options out of range; ComputeError when the model computes NaN; EngineBusyError when too many
        calls wait; DeadlineError when `timeout` is over; ClosedError when the Engine is closed.
        """
        from ollama_engine.runner.embed.pooling import joined  # noqa: PLC0415 (see `_images`)

        many, listed = _listed(images)
        calls = self._image_calls(many, listed, normalize, priority, timeout)
        rows = joined([call.wait() for call in calls], self._images().n_embd)
        return rows if listed else rows[0]

    async def aembed_image(
        self, images: ImageSource | Sequence[ImageSource], *, normalize: bool = True, priority: int = 0,
        timeout: float | None = None,
    ) -> FloatArray:  # fmt: skip
        """`embed_image` for asyncio: the same arguments, result and errors. Cancelling the task cancels the request."""
        from ollama_engine.runner.embed.pooling import joined  # noqa: PLC0415 (see `_images`)

        many, listed = _listed(images)
        calls = self._image_calls(many, listed, normalize, priority, timeout)
        rows = joined([await call.coming() for call in calls], self._images().n_embd)
        return rows if listed else rows[0]

    def _images(self) -> ImageSubmission:
        loaded = self._open()
        with self._making_images:
            if self._image_submission is None:
                # A program that embeds no images starts sooner without it.
                from ollama_engine.runner.embed.images import ImageSubmission  # noqa: PLC0415

                self._image_submission = ImageSubmission(loaded, self._engine_thread)
            return self._image_submission

    def _image_calls(
        self, images: Sequence[ImageSource], listed: bool, normalize: bool, priority: int, timeout: float | None
    ) -> Iterator[EmbeddingCall[FloatArray]]:
        """Calls of a few images each, which wait one after the other, so that few are held in memory."""
        if not isinstance(normalize, bool):
            raise ConfigError(Option("normalize"), f" is True or False, got {normalize!r}")
        submission, options = self._images(), RequestOptions(priority=priority, timeout=timeout)
        begin = time.monotonic()
        for first in range(0, len(images), submission.at_once):
            if timeout is not None:
                left = max(timeout - (time.monotonic() - begin), 1e-3)
                options = RequestOptions(priority=priority, timeout=left)
            part = images[first : first + submission.at_once]
            yield submission.call(part, options, normalize=normalize, first=first, listed=listed)


def _listed(images: ImageSource | Sequence[ImageSource]) -> tuple[Sequence[ImageSource], bool]:
    """A list of images, and whether it was one already."""
    if isinstance(images, (list, tuple)):
        return images, True
    return [images], False  # type: ignore[list-item]
