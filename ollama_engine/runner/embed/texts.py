"""EmbedTexts: tokenizes the texts of a call, or raises the error about the first bad text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, cast

import numpy as np

from ollama_engine.config import Pooling
from ollama_engine.errors import (
    ConfigError,
    ContextOverflowError,
    Option,
    TokenizerError,
    UnsupportedInputError,
    UnsupportedModelError,
)
from ollama_engine.input import Input
from ollama_engine.models import known_values
from ollama_engine.multimodal.source import image_bytes
from ollama_engine.runner.core.input_processor import prompt_inputs, segment_ids
from ollama_engine.runner.core.text_room import TextRoom
from ollama_engine.runner.embed.prompt_template import PromptTemplate, find_template
from ollama_engine.runner.embed.task_prompts import Purpose, prefixed
from ollama_engine.runner.embed.tokenized_text import TokenizedText
from ollama_engine.runner.load.loading import Loaded
from ollama_engine.runner.load.pooling_type import model_pooling
from ollama_engine.runner.load.vision import traits_beside_text
from ollama_engine.runner.media.image_reader import ImageReader
from ollama_engine.runner.request.inputs import Inputs
from ollama_engine.runner.request.prompts import Prompt, about_one, has_media, is_segments
from ollama_engine.segments import Media, Segment, Text
from ollama_engine.tokenizer import Checkpoint, Fields

__all__ = ["EmbedTexts", "TooLong", "Written"]

TooLong = Literal["error", "truncate"]
Written = str | Sequence[Segment]

NUM_CTX = Option("num_ctx")
ADVICE = (
    "shorten it",
    ("choose a larger ", NUM_CTX, " where the model can take it"),
    ("let it be cut with ", Option("on_overflow", "truncate")),
)
UNCUT = ADVICE[:2]
"""For a text with images, which nothing cuts."""


class EmbedTexts:
    """Tokenizes texts lazily, one after the other. Knows no thread."""

    def __init__(self, loaded: Loaded) -> None:
        """Raises ModelFormatError for a file whose templates have no place for a text."""
        self._loaded = loaded
        self._template = find_template(loaded.gguf.metadata, "rerank")
        """None where the model reads a pair as BERT does."""
        self._embed_template = find_template(loaded.gguf.metadata, "embed")
        self._own_pooling = model_pooling(known_values(loaded.gguf.metadata), encoder=loaded.is_encoder)
        self._instruction = known_values(loaded.gguf.metadata).str("prompt.instruction", "")
        fields = Fields(loaded.gguf.metadata)
        self._padding = fields.token_id("padding_token_id", loaded.model.n_vocab)
        self._padded = fields.number("padded_length")
        """Tokens of every text, for models that were trained with padding."""
        if self._padded > loaded.model.context_length or (self._padded and self._padding is None):
            raise fields.wrong("padded_length", f"up to {loaded.model.context_length}, with a padding_token_id")
        self._takes_images = traits_beside_text(loaded.model) is not None

    def alone(
        self, texts: Iterable[Prompt], pooling: Pooling, too_long: TooLong, name: str | None, purpose: Purpose,
        checkpoint: Checkpoint,
    ) -> Iterator[TokenizedText]:  # fmt: skip
        """Tokenize each text, with what its purpose asks for. Errors name a text by its number in the list `name`."""
        for number, text in enumerate(texts):
            with about_one(name, number):
                if self._embed_template is None or purpose.prompt is None or not _is_written(text):
                    found = self._text(prefixed(purpose.prompt, text), pooling, too_long, checkpoint)
                else:
                    instruction = [Text(purpose.prompt or self._instruction)]
                    found = self._filled(self._embed_template, instruction, text, pooling, too_long, checkpoint)
            yield found._replace(adapter=purpose.adapter)

    def pairs(
        self, query: Written, documents: Iterable[Written], too_long: TooLong, types: bool, checkpoint: Checkpoint
    ) -> Iterator[TokenizedText]:
        """A query with each of the documents. `types`: the model has token types for the two."""
        self._check_pair(query)
        texts = [segment.text for segment in _segments(query) if isinstance(segment, Text)]
        n_characters = sum(len(text) for text in texts if isinstance(text, str))
        self._room("error").check(self._loaded.tokenizer, n_characters, "the query")
        first = self._query(query, checkpoint) if self._template is None and isinstance(query, str) else []
        for number, document in enumerate(documents):
            with about_one("documents", number):
                self._check_pair(document)
                if self._template is not None:
                    pair = self._filled(self._template, _segments(query), document, "rank", too_long, checkpoint)
                else:
                    assert isinstance(document, str), "checked"
                    pair = self._pair(first, document, too_long, checkpoint, types=types)
            yield pair

    def _text(self, text: Prompt, pooling: Pooling, too_long: TooLong, checkpoint: Checkpoint) -> TokenizedText:
        loaded = self._loaded
        if has_media(text) and loaded.image_vectors is not None:
            return self._image(text, loaded.image_vectors.reader, pooling)
        if loaded.text_executor is None:
            raise UnsupportedModelError(
                f"architecture {loaded.model.architecture} gives no hidden states to embed texts by"
            )
        if has_media(text):
            return self._with_images(cast("Sequence[Segment]", text), pooling, checkpoint)
        inputs = prompt_inputs(
            loaded, text, several="several texts go into a list", checkpoint=checkpoint, room=self._room(too_long)
        )
        ids = inputs.tokens.tolist()
        self._check(ids)
        fitted = self._fitted(ids, loaded.num_ctx, too_long)
        if self._padding is not None and len(fitted) < self._padded:
            ids = fitted = self._fitted(
                [*fitted, *[self._padding] * (self._padded - len(fitted))], loaded.num_ctx, "error"
            )
        return TokenizedText(np.array(fitted, dtype=np.int32), pooling, len(ids))

    def _with_images(self, segments: Sequence[Segment], pooling: Pooling, checkpoint: Checkpoint) -> TokenizedText:
        """A text that nothing cuts."""
        loaded = self._loaded
        if loaded.images is not None and not self._takes_images:
            raise UnsupportedInputError(f"{loaded.model.architecture} embeds texts only; leave the images out")
        room = TextRoom(loaded.num_ctx, advice=UNCUT)
        inputs = prompt_inputs(loaded, segments, add_special=pooling != "rank", checkpoint=checkpoint, room=room)
        if len(inputs) > loaded.num_ctx:
            raise ContextOverflowError(
                f"a text has {len(inputs)} tokens, but ", NUM_CTX, f" is {loaded.num_ctx}", advice=UNCUT
            )
        return TokenizedText(inputs.tokens, pooling, len(inputs), inputs=inputs if inputs.media else None)

    def _image(self, text: Prompt, reader: ImageReader, pooling: Pooling) -> TokenizedText:
        """An image for a model that makes one vector of each."""
        if len(text) != 1 or pooling != self._own_pooling:
            raise UnsupportedInputError(
                "this model makes one vector of an image; give it alone, as [Media(...)], and no pooling"
            )
        (media,) = cast("Sequence[Media]", text)
        item = reader.item(image_bytes(media.data))
        return TokenizedText(np.empty(0, np.int32), pooling, 0, inputs=Inputs.of([Input(-1, item)]))

    def _check_pair(self, text: object) -> None:
        if not isinstance(text, str) and (self._template is None or not is_segments(text)):
            raise ConfigError(
                "query and documents are texts (str), or lists of segments for a model that ranks by a template, got "
                f"{type(text).__name__}"
            )

    def _query(self, query: str, checkpoint: Checkpoint) -> list[int]:
        tokenizer = self._loaded.tokenizer
        ids = tokenizer.encode(query, checkpoint=checkpoint)
        if ids and tokenizer.doubles_end and tokenizer.add_eos and tokenizer.eos_id is not None:
            ids.append(tokenizer.eos_id)
        if ids:
            self._check(ids)
        return ids

    def _pair(
        self, first: list[int], document: str, too_long: TooLong, checkpoint: Checkpoint, *, types: bool
    ) -> TokenizedText:
        """Begin, query, end, document, end: as BERT joins two texts; `first` are the first three."""
        tokenizer = self._loaded.tokenizer
        fitted = self._room(too_long).fitted(tokenizer, [(document, True)], "a text")
        second = tokenizer.encode("".join(text for text, _ in fitted), checkpoint=checkpoint)
        # Both have the begin token; the second text keeps its end only.
        second = second[1 if tokenizer.add_bos and tokenizer.bos_id is not None else 0 :]
        self._check(first + second)
        cut = self._fitted(second, self._loaded.num_ctx - len(first), too_long, f"after a query of {len(first)}, ")
        tokens = np.array(first + cut, dtype=np.int32)
        return TokenizedText(tokens, "rank", len(first) + len(second), len(first) if types else None)

    def _filled(
        self, template: PromptTemplate, first: Sequence[Segment], text: Prompt, pooling: Pooling, too_long: TooLong,
        checkpoint: Checkpoint,
    ) -> TokenizedText:  # fmt: skip
        """The template with both texts in it. Where it is too long, the second loses its end; not with images in it."""
        before, behind = template.around(first)
        middle = _segments(text)
        if has_media([*before, *middle, *behind]):
            return self._with_images([*before, *middle, *behind], pooling, checkpoint)
        tokenizer, room = self._loaded.tokenizer, self._room(too_long)
        given = [*before, *middle]
        head = prompt_inputs(self._loaded, given, add_special=False, checkpoint=checkpoint, room=room).tokens.tolist()
        tail = segment_ids(self._loaded, behind, add_special=False)
        if pooling != "rank":  # as around any text
            head[:0] = [tokenizer.bos_id] if tokenizer.add_bos and tokenizer.bos_id is not None else []
            tail += [tokenizer.eos_id] if tokenizer.add_eos and tokenizer.eos_id is not None else []
        self._check(head + tail)
        cut, limit = head, self._loaded.num_ctx
        if len(head) + len(tail) > limit and too_long == "error":
            self._fitted(head + tail, limit, too_long)
        elif len(head) + len(tail) > limit:
            # The last token before the document may be another one with it.
            least = len(segment_ids(self._loaded, before, add_special=False))
            n = limit - len(tail) if least + len(tail) < limit else 0
            cut = self._fitted(head, n, too_long, f"around a document stand {least + len(tail)} tokens, so ")
        return TokenizedText(np.array(cut + tail, dtype=np.int32), pooling, len(head) + len(tail))

    def _room(self, too_long: TooLong) -> TextRoom:
        num_ctx = self._loaded.num_ctx
        return TextRoom(num_ctx, first=num_ctx) if too_long == "truncate" else TextRoom(num_ctx, advice=ADVICE)

    def _check(self, ids: Sequence[int]) -> None:
        n_vocab = self._loaded.model.n_vocab
        if not ids:
            raise ConfigError("a text has no tokens, and the model puts none before it; give at least one")
        bad = [token for token in ids if not 0 <= token < n_vocab]
        if bad:
            raise TokenizerError(f"token {bad[0]} is not in the vocabulary (0 to {n_vocab - 1})")

    def _fitted(self, ids: list[int], room: int, too_long: TooLong, after: str = "") -> list[int]:
        """The first `room` tokens, with the end token last."""
        if len(ids) <= room:
            return ids
        limit = self._loaded.num_ctx
        if too_long == "error":
            raise ContextOverflowError(
                f"{after}a text has {len(ids)} tokens, but ",
                NUM_CTX,
                f" is {limit}",
                advice=ADVICE,
            )
        end = ids[-1:] if self._loaded.tokenizer.add_eos and ids[-1] == self._loaded.tokenizer.eos_id else []
        if room <= len(end):
            raise ContextOverflowError(
                f"{after}no token of a text has room, for ",
                NUM_CTX,
                f" is {limit}",
                advice=["shorten what comes before it", ("choose a larger ", NUM_CTX)],
            )
        return [*ids[: room - len(end)], *end]


def _is_written(text: Prompt) -> bool:
    """Whether it is no token ids, which are taken as they are."""
    return isinstance(text, str) or is_segments(text)


def _segments(text: Prompt) -> Sequence[Segment]:
    return [Text(text)] if isinstance(text, str) else cast("Sequence[Segment]", text)
