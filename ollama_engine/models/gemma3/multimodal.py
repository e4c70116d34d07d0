"""Gemma 3's image input: arrays, tokens around them, embeddings.

An image is two newlines, <start_of_image>, its soft tokens, <end_of_image>, and two newlines. transformers'
Gemma3Processor writes that in place of <start_of_image> before the text is tokenized. So newlines that touch those of
the text are one run, and the vocabulary has tokens for whole runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ollama_engine import nn
from ollama_engine.errors import ModelFormatError
from ollama_engine.input import Input, MediaItem, MediaTraits, PreparedImage
from ollama_engine.ml.gguf.metadata import Metadata
from ollama_engine.ml.graph.tensor import Tensor
from ollama_engine.models.gemma3.preprocess import Preprocessor
from ollama_engine.models.gemma3.vision import VisionPart, read_options
from ollama_engine.models.images import ImageTokens, input_ids
from ollama_engine.models.media_tokens import newline_runs, split_run, token_id

if TYPE_CHECKING:
    from ollama_engine.ml.graph.context import Context

BEGIN, END = "<start_of_image>", "<end_of_image>"
AROUND = 2
"""Newlines before an image and after it."""


class Gemma3Multimodal(ImageTokens):
    placeholder = BEGIN

    def __init__(self, metadata: Metadata, scope: nn.Scope) -> None:
        """`scope`: all weights of the file, with the options of the text model."""
        self.options = read_options(metadata, scope.options.n_embd)
        self.vision = VisionPart(nn.Scope(scope.weights, self.options, used=scope.used))
        super().__init__(Preprocessor(metadata, self.options))
        n_ids = input_ids(scope)
        self._begin = token_id(metadata, "image_start_token_id", BEGIN, n_ids)
        self._end = token_id(metadata, "image_end_token_id", END, n_ids)
        # Rows of the embedding table that this id stands for are replaced. Some files have no row for it.
        soft = metadata.u32("image_token_id", 0)
        self._soft = soft if soft < n_ids else 0
        self._runs = newline_runs(metadata)
        if 1 not in self._runs:
            raise ModelFormatError("the vocabulary has no token for a newline, which stands before and after an image")
        self._lengths = {id_: n for n, id_ in self._runs.items()}

    @property
    def traits(self) -> MediaTraits:
        """Soft tokens of an image attend to each other, so they are computed in one batch."""
        return MediaTraits(largest_group=self.options.n_tokens, bidirectional=True)

    def encode_multimodal(self, ctx: Context, image: PreparedImage) -> Tensor:
        """The graph of the vision part: soft tokens f32 [n_embd, n_tokens]."""
        return self.vision.forward(ctx.from_floats(image.arrays["patches"]), self.options)

    def post_tokenize(self, inputs: list[Input]) -> list[Input]:
        """Replace each image by its soft tokens with a token and newlines at either side."""
        written: list[Input] = []
        after = 0  # newlines behind an image that are not written yet: more may follow
        for given in inputs:
            if given.media is not None:
                before = after or self._take_newlines(written)
                written += self._newlines(before + AROUND) + self.image_inputs(given.media)
                after = AROUND
            elif after and given.token in self._lengths:
                after += self._lengths[given.token]
            else:
                written += [*self._newlines(after), given]
                after = 0
        return written + self._newlines(after)

    def _take_newlines(self, inputs: list[Input]) -> int:
        """Remove the newlines at the end of `inputs`: how many there were."""
        n = 0
        while inputs and inputs[-1].token in self._lengths:
            n += self._lengths[inputs.pop().token]
        return n

    def _newlines(self, n: int) -> list[Input]:
        return [Input(self._runs[length]) for length in split_run(n, self._runs)]

    def image_inputs(self, item: MediaItem) -> list[Input]:
        """Its soft tokens in one batch, between a token that begins and one that ends them."""
        n = item.n_inputs
        return [
            Input(self._begin),
            Input(self._soft, item, same_batch=n - 1),
            *[Input(self._soft)] * (n - 1),
            Input(self._end),
        ]
