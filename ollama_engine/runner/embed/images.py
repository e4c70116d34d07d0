"""Images to vectors: the batcher that the engine's thread owns, and the calls of callers' threads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ollama_engine.errors import EngineError, NoMemoryError, UnsupportedModelError
from ollama_engine.multimodal.image import read_image
from ollama_engine.multimodal.source import image_bytes
from ollama_engine.runner.core.engine_thread import EngineThread
from ollama_engine.runner.embed.call import EmbeddingCall
from ollama_engine.runner.embed.pooling import FloatArray
from ollama_engine.runner.embed.request import EmbeddingRequest, ImagePart
from ollama_engine.runner.embed.results import Vectors
from ollama_engine.runner.load.loading import Loaded
from ollama_engine.runner.load.vision import ImageVectors
from ollama_engine.runner.observe.monitor import Monitor
from ollama_engine.runner.request.options import RequestOptions
from ollama_engine.runner.request.prompts import numbered
from ollama_engine.runner.request.results import Result
from ollama_engine.runner.schedule.queued import BatchedRequest
from ollama_engine.segments import ImageSource

__all__ = ["AT_ONCE", "ImageBatcher", "ImageSubmission"]

AT_ONCE = 16
"""Most images of a call that are prepared and wait: one takes some hundred kilobytes to a few megabytes."""


class ImageBatcher:
    """Computes one image of one request, then other requests have their turn."""

    def __init__(self, vectors: ImageVectors, monitor: Monitor) -> None:
        self._vectors = vectors
        self._monitor = monitor
        self._batches = 0

    def run(self, turns: Sequence[EmbeddingRequest]) -> list[tuple[BatchedRequest, Result | BaseException]]:
        """See Batcher."""
        self._batches += 1
        begin = self._monitor.clock()
        request = turns[0]
        if not request.started_at:
            request.started_at = begin
            self._monitor.started(request, begin)
        request.last_batch = self._batches
        number, part = request.pending.popleft()
        try:
            vector = self._vectors.encoder.encode(part.image)[0]
            event = request.give([(number, part)], [vector])
        except MemoryError:
            return [(request, NoMemoryError("there is no memory left to embed this image"))]
        except EngineError as error:
            return [(request, error if request.name is None else numbered(error, request.name, number))]
        self._monitor.encoded(self._batches, begin)
        return [] if event is None else [(request, event)]


class ImageSubmission:
    """Where images are handed in, from any thread."""

    def __init__(self, loaded: Loaded, thread: EngineThread) -> None:
        """Raises UnsupportedModelError for a model that gives no vectors of images."""
        vectors = loaded.image_vectors
        if vectors is None:
            raise UnsupportedModelError(
                f"architecture {loaded.model.architecture} gives no vectors of images; CLIP and SigLIP models do"
            )
        self.at_once = AT_ONCE
        self.n_embd = vectors.n_embd
        """Length of a vector."""
        self._tower = vectors.tower
        self._engine_thread = thread
        self._batcher = ImageBatcher(vectors, thread.monitor)

    def call(
        self, images: Sequence[ImageSource], options: RequestOptions, *, normalize: bool, first: int, listed: bool
    ) -> EmbeddingCall[FloatArray]:
        """A call for a vector of each image, of which the caller counts the first as `first`.

        `listed`: errors name the number of an image.
        """
        self._engine_thread.check_open()
        results = Vectors(len(images), self.n_embd, normalize=normalize)
        return EmbeddingCall(
            self._prepared(images, first, listed=listed), len(images), results, options, None, False,
            self._engine_thread, self._batcher, 1,
        )  # fmt: skip

    def _prepared(self, images: Sequence[ImageSource], first: int, *, listed: bool) -> Iterator[ImagePart]:
        for number, image in enumerate(images, first):
            try:
                yield ImagePart(self._tower.preprocess(read_image(image_bytes(image))))
            except EngineError as error:
                raise numbered(error, "images", number) if listed else error from None
