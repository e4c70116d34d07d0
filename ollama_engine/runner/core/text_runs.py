"""The texts of a prompt in segments: which are tokenized together, and where BOS and EOS stand."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import cast

from ollama_engine.segments import Media, Segment, Text, Tokens
from ollama_engine.tokenizer import Checkpoint, Tokenizer

__all__ = ["run_ids", "text_runs"]


def text_runs(segments: Sequence[Segment]) -> Iterator[list[Text] | Tokens | Media]:
    """Texts that follow each other together: what is tokenized is the joined text, wherever it is cut."""
    for is_text, run in itertools.groupby(segments, lambda segment: isinstance(segment, Text)):
        if is_text:
            yield cast("list[Text]", list(run))
        else:
            yield from cast("Iterator[Tokens | Media]", run)


def run_ids(
    tokenizer: Tokenizer, parts: Sequence[tuple[str, bool]], checkpoint: Checkpoint, *, begins: bool, ends: bool
) -> list[int]:
    """The ids of texts (text, parse_special), with BOS where they begin the prompt and EOS where they end it.

    A template may have written BOS itself; there is only one.
    """
    ids = tokenizer.encode_parts(parts, add_special=begins or ends, checkpoint=checkpoint)
    if begins or ends:
        n_bos = int(tokenizer.add_bos and tokenizer.bos_id is not None)
        n_eos = int(tokenizer.add_eos and tokenizer.eos_id is not None)
        twice = n_bos and parts and parts[0][1] and ids[1:2] == [tokenizer.bos_id]
        ids = ids[(0 if begins and not twice else n_bos) : len(ids) - (0 if ends else n_eos)]
    return ids
