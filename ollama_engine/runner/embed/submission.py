"""EmbedSubmission: checks the arguments of embedding and ranking calls, and makes the calls."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import cast, get_args

from ollama_engine.config import Pooling
from ollama_engine.errors import ConfigError, Option, UnsupportedModelError
from ollama_engine.ml.gguf.metadata import Metadata
from ollama_engine.models import Embeds, ProjectsVectors, Ranks, TextEncoder, known_values
from ollama_engine.runner.core.engine_thread import EngineThread
from ollama_engine.runner.embed.batcher import TextBatcher
from ollama_engine.runner.embed.call import EmbeddingCall, Tokenize
from ollama_engine.runner.embed.embedder import Embedder
from ollama_engine.runner.embed.pooling import FloatArray, check_pooling
from ollama_engine.runner.embed.results import Embedding, Embeddings, Results, Value_co, Vectors
from ollama_engine.runner.embed.task_prompts import Purpose, TaskPrompts
from ollama_engine.runner.embed.texts import EmbedTexts, TooLong, Written
from ollama_engine.runner.load.loading import Loaded
from ollama_engine.runner.load.pooling_type import model_pooling, read_pooling
from ollama_engine.runner.request.options import RequestOptions, whole
from ollama_engine.runner.request.prompts import Prompt, has_media, is_long
from ollama_engine.segments import ImageSource, Media

__all__ = ["EmbedSubmission", "TooLong"]


class EmbedSubmission:
    """Where texts are handed in, from any thread. Raises ConfigError, TokenizerError and the errors of
    `EngineThread.submit`.
    """

    def __init__(self, loaded: Loaded, thread: EngineThread) -> None:
        """Raises UnsupportedModelError for a model without access to its hidden states."""
        model: object = loaded.model
        vectors = loaded.image_vectors
        if not isinstance(model, Embeds) and vectors is None:
            architecture = loaded.model.architecture
            raise UnsupportedModelError(f"architecture {architecture} gives no hidden states to embed texts by")
        metadata = known_values(loaded.gguf.metadata)
        # -- collaborators --
        self._loaded = loaded
        self._engine_thread = thread
        self._texts = EmbedTexts(loaded)
        self.prompts = TaskPrompts(metadata)
        embedder = Embedder(loaded, loaded.text_executor, _head_pooling(loaded, metadata))
        self._batcher = TextBatcher(embedder, loaded.config.batch_size, thread.monitor)
        # -- configuration --
        self._n_embd = model.n_embd if isinstance(model, Embeds) else vectors.n_embd if vectors is not None else 0
        self._n_vector = model.n_vector if isinstance(model, ProjectsVectors) else self._n_embd
        # isinstance with a Protocol, once and here: an interrupt in that check would be lost.
        self._n_scores = model.n_scores if isinstance(model, Ranks) else 0
        self._knows_pairs = isinstance(model, TextEncoder) and model.n_token_types > 1
        self._default = model_pooling(metadata, encoder=loaded.is_encoder)
        self._pooling_key = metadata.key("pooling_type")

    # -- calls ---------------------------------------------------------------------------------------------------------

    def embed(
        self, texts: Sequence[Prompt], pooling: Pooling | None, too_long: TooLong, dimensions: int | None, options:
        RequestOptions, *, normalize: bool, purpose: Purpose, name: str | None = "texts",
    ) -> EmbeddingCall[FloatArray]:  # fmt: skip
        """A call for one vector of each text. `name`: the caller's, for errors; None for a single text."""
        how, dim = self._checked(pooling, too_long, dimensions, normalize=normalize)
        if how == "none":
            raise ConfigError("with pooling none each token has a vector; those come from Engine.embeddings")
        results = Vectors(len(texts), dim, normalize=normalize, index=() if name else (0,))
        tokenize = partial(self._texts.alone, texts, how, too_long, name, purpose)
        return self._call(tokenize, texts, results, options, name)

    def images(
        self, images: ImageSource | Sequence[ImageSource], options: RequestOptions, *, normalize: bool
    ) -> EmbeddingCall[FloatArray]:
        """A call for one vector of each image. Raises UnsupportedModelError for a model that reads none."""
        if self._loaded.image_reader is None:
            raise UnsupportedModelError(
                f"architecture {self._loaded.model.architecture} gives no vectors of images; CLIP and SigLIP models do"
            )
        listed: Sequence[ImageSource] = images if isinstance(images, (list, tuple)) else [cast("ImageSource", images)]
        texts = [[Media(image)] for image in listed]
        name = "images" if listed is images else None
        return self.embed(
            texts,
            None,
            "error",
            None,
            options,
            normalize=normalize,
            purpose=self.prompts.purpose(None, None),
            name=name,
        )

    def embeddings(
        self, texts: Sequence[Prompt], pooling: Pooling | None, too_long: TooLong, dimensions: int | None, options:
        RequestOptions, *, normalize: bool, purpose: Purpose,
    ) -> EmbeddingCall[list[Embedding]]:  # fmt: skip
        """A call for an Embedding of each text."""
        how, dim = self._checked(pooling, too_long, dimensions, normalize=normalize)
        results = Embeddings(len(texts), dim, normalize=normalize)
        tokenize = partial(self._texts.alone, texts, how, too_long, "texts", purpose)
        return self._call(tokenize, texts, results, options, "texts")

    def rank(
        self, query: Written, documents: Sequence[Written], too_long: TooLong, options: RequestOptions
    ) -> EmbeddingCall[FloatArray]:
        """A call for the score of a query with each of the documents."""
        self._engine_thread.check_open()
        if self._n_scores != 1:
            has = f"gives {self._n_scores} scores" if self._n_scores else "has none"
            raise ConfigError(f"ranking takes a model with a classification head of one score; this model {has}")
        _check_options(too_long, True)
        if isinstance(documents, (str, bytes)) or not isinstance(documents, Iterable):
            raise ConfigError(f"documents are a list of texts, got {type(documents).__name__}")
        documents = list(documents)
        pairs = partial(self._texts.pairs, query, documents, too_long, self._knows_pairs)
        results = Vectors(len(documents), 1, normalize=False, index=(slice(None), 0))
        return self._call(pairs, [query, *documents], results, options, "documents", n=len(documents))

    def _call(
        self, texts: Tokenize, given: Sequence[Prompt], results: Results[Value_co],
        options: RequestOptions, name: str | None, *, n: int | None = None,
    ) -> EmbeddingCall[Value_co]:  # fmt: skip
        long = is_long(given) or any(map(has_media, given))
        return EmbeddingCall(
            texts, len(given) if n is None else n, results, options, name, long,
            self._engine_thread, self._batcher, self._loaded.config.batch_size,
        )  # fmt: skip

    # -- options -------------------------------------------------------------------------------------------------------

    def _checked(
        self, pooling: Pooling | None, too_long: TooLong, dimensions: int | None, *, normalize: bool
    ) -> tuple[Pooling, int]:
        """How texts are pooled, and how many numbers of their vectors are kept."""
        self._engine_thread.check_open()
        how = self._chosen(pooling)
        _check_options(too_long, normalize)
        most = self._n_embd if how == "none" else self._n_vector
        return how, most if dimensions is None else whole("dimensions", dimensions, 1, most)

    def _chosen(self, pooling: Pooling | None) -> Pooling:
        encoder = self._loaded.is_encoder
        how = self._default if pooling is None else check_pooling(pooling)
        if how is None and not encoder and not self._n_scores:
            raise ConfigError(
                f"{self._pooling_key} names no way in which this model embeds texts; say which pooling: last or mean"
            )
        if how is None:
            raise ConfigError(
                "this model ranks documents (Engine.rank); for embeddings all the same, say which pooling"
            )
        if how == "rank":
            raise ConfigError("scores of pairs come from Engine.rank; pooling is none, mean, cls or last here")
        if pooling is not None and self._loaded.text_executor is None:
            raise ConfigError(Option("pooling"), " is of the tokens of texts, and this model reads images alone")
        if how == "cls" and not encoder:
            raise ConfigError(
                Option("pooling"), " is cls, but the first token of this model has seen nothing else; use last or mean"
            )
        return how


def _head_pooling(loaded: Loaded, metadata: Metadata) -> Pooling:
    """Pooling for the classification head: from the file, else the architecture's default."""
    if not isinstance(loaded.model, Ranks):
        return "last"
    said = read_pooling(metadata, "classifier.pooling_type")
    if said is None:
        return loaded.model.head_pooling
    if said not in ("cls", "mean"):
        raise UnsupportedModelError(f"{metadata.key('classifier.pooling_type')} is {said}; supported: cls, mean")
    return said


def _check_options(too_long: object, normalize: object) -> None:
    if too_long not in get_args(TooLong):
        known = ", ".join(get_args(TooLong))
        raise ConfigError(Option("on_overflow"), f" is one of {known} for embeddings, got {too_long!r}")
    if not isinstance(normalize, bool):
        raise ConfigError(Option("normalize"), f" is True or False, got {normalize!r}")
