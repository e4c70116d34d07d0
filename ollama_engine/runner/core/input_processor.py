"""Makes inputs of a caller's prompt, or raises the error that says why not."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import cast

from ollama_engine.errors import (
    ConfigError,
    EngineError,
    ImageError,
    ModelFormatError,
    TokenizerError,
    UnsupportedInputError,
)
from ollama_engine.input import Input, MediaItem
from ollama_engine.multimodal.source import before_message, image_bytes
from ollama_engine.runner.core.text_room import TextRoom
from ollama_engine.runner.core.text_runs import run_ids, text_runs
from ollama_engine.runner.load.loading import Loaded
from ollama_engine.runner.media.image_reader import PromptImageReader
from ollama_engine.runner.request.inputs import Inputs
from ollama_engine.runner.request.prompts import SEVERAL, Prompt, is_segments, prompt_ids
from ollama_engine.segments import Media, Segment, Text, Tokens
from ollama_engine.tokenizer import Checkpoint, Tokenizer

__all__ = ["prompt_inputs", "refuse_encoder", "refuse_media", "segment_ids"]


def prompt_inputs(
    loaded: Loaded, prompt: Prompt, *, add_special: bool = True, several: str = SEVERAL, checkpoint: Checkpoint = None,
    room: TextRoom | None = None,
) -> Inputs:  # fmt: skip
    """The inputs of a prompt: text, token ids or segments. BOS comes first, unless the first segment is Tokens.

    `several`: hint shown when several prompts are passed. An exception of `checkpoint` ends the work. `room`: the
    context that it is for; None where any length will do.

    Raises ContextOverflowError as `room` does, and ConfigError for another type. Raises TokenizerError for text that
    the vocabulary cannot express and ids beyond it, ImageError for images that the model cannot take, and
    UnsupportedInputError for any image where it reads text only.
    """
    if is_segments(prompt):
        return _segment_inputs(loaded, prompt, checkpoint, room, add_special=add_special)
    if isinstance(prompt, str) and room is not None:
        prompt = "".join(text for text, _ in room.fitted(loaded.tokenizer, [(prompt, True)]))
    text = cast("str | Sequence[int]", prompt)
    ids = prompt_ids(loaded.tokenizer, text, add_special=add_special, several=several, checkpoint=checkpoint)
    return Inputs.text(_checked(ids, loaded))


def segment_ids(loaded: Loaded, segments: Sequence[Segment], *, add_special: bool = True) -> list[int]:
    """The token ids of a prompt in segments, as `prompt_inputs` has them. Raises UnsupportedInputError for media."""
    if any(isinstance(segment, Media) for segment in segments):
        raise UnsupportedInputError("an image has no token ids", advice=["leave it out"])
    return prompt_inputs(loaded, segments, add_special=add_special).tokens.tolist() if segments else []


def _segment_inputs(
    loaded: Loaded, segments: Sequence[Segment], checkpoint: Checkpoint, room: TextRoom | None, *, add_special: bool
) -> Inputs:
    """Inputs of segments. An input is an object where there are media only: a long conversation has 100,000 tokens."""
    runs = list(text_runs(segments))
    n_media = sum(isinstance(run, Media) for run in runs)
    if n_media:
        refuse_media(loaded)
    last = len(runs) - 1
    if room is not None:
        texts = [text.text for run in runs if isinstance(run, list) for text in run]
        room.check(loaded.tokenizer, sum(len(text) for text in texts if isinstance(text, str)))
    ids = [
        _ids_of_run(
            loaded, run, checkpoint, room, begins=add_special and number == 0, ends=add_special and number == last
        )
        for number, run in enumerate(runs)
    ]
    images = loaded.images
    if not n_media or images is None:
        return Inputs.text([token for tokens in ids for token in tokens])
    inputs: list[Input] = []
    numbers = itertools.count(1)
    for run, tokens in zip(runs, ids, strict=True):
        inputs += map(Input, tokens)
        if isinstance(run, Media):
            if checkpoint is not None:
                checkpoint()
            inputs.append(Input(-1, _media_item(loaded, images, run, next(numbers), n_media)))
    made = Inputs.of(images.multimodal.post_tokenize(inputs))
    if not 0 <= made.tokens.min() <= made.tokens.max() < loaded.model.n_input_ids:
        raise ModelFormatError("the model's file names tokens that stand around an image and have no embedding")
    return made


def _ids_of_run(
    loaded: Loaded, run: list[Text] | Tokens | Media, checkpoint: Checkpoint, room: TextRoom | None, *, begins: bool,
    ends: bool,
) -> list[int]:  # fmt: skip
    """The ids of texts that follow each other, or those given; of media what comes before them, at a beginning."""
    if isinstance(run, Tokens):
        return _checked(_token_ids(loaded.tokenizer, run), loaded)
    if isinstance(run, Media):
        return run_ids(loaded.tokenizer, [], checkpoint, begins=begins, ends=False)
    parts: Sequence[tuple[str, bool]] = [(text.text, text.parse_special) for text in run if text.text]
    if room is not None:
        parts = room.fitted(loaded.tokenizer, parts)
    return run_ids(loaded.tokenizer, parts, checkpoint, begins=begins, ends=ends)


def _token_ids(tokenizer: Tokenizer, tokens: Tokens) -> list[int]:
    if isinstance(cast(object, tokens.ids), str):
        raise ConfigError("Tokens holds token ids, got a str; wrap texts in Text(...)")
    return prompt_ids(tokenizer, tokens.ids)


def refuse_media(loaded: Loaded) -> None:
    """Raise UnsupportedInputError for a model that reads text only, ConfigError for one that writes nothing."""
    if loaded.image_vectors is not None:
        refuse_encoder(loaded)
    if loaded.images is None:
        raise UnsupportedInputError(
            f"the model (architecture {loaded.model.architecture}) reads text only, and the prompt has an image in it",
            advice=["leave it out", "load a model that reads images"],
        )


def _media_item(loaded: Loaded, images: PromptImageReader, media: Media, number: int, n_media: int) -> MediaItem:
    """The item of image `number` (from 1) of `n_media` in the prompt; errors say which it is."""
    where = "" if n_media == 1 else f"image {number} of {n_media}: "
    try:
        data = image_bytes(media.data)  # its errors name the path themselves
        where += before_message(media.data)
        item = images.item(data)
    except EngineError as error:
        raise (error.behind(where) if where else error) from error.__cause__
    if not loaded.executor.takes(item):
        raise ImageError(f"architecture {loaded.model.architecture} made of an image what its graphs do not take")
    return item


def refuse_encoder(loaded: Loaded) -> None:
    """Raise ConfigError for a text encoder."""
    if loaded.image_vectors is not None:
        both = "texts and images" if loaded.text_executor is not None else "images"
        raise ConfigError(
            f"{loaded.model.architecture} reads {both} and writes nothing: it has vectors of them (Engine.embed)"
        )
    if loaded.is_encoder:
        raise ConfigError(
            f"{loaded.model.architecture} reads texts and writes none: it has embeddings (Engine.embed), and scores "
            "where it was trained to rank (Engine.rank), but no answers and no logits"
        )


def _checked(ids: list[int], loaded: Loaded) -> list[int]:
    n_ids = loaded.model.n_input_ids
    bad = next((token for token in ids if not 0 <= token < n_ids), None)
    if bad is not None:
        raise TokenizerError(f"token {bad} is not in the vocabulary (0 to {n_ids - 1})")
    return ids
