"""Write the goldens of encoders: `python -m tests.models.make_encoder_goldens [case ...]`, with torch installed."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer as HFTokenizer

from tests.models.encoder_reference import EncoderReference
from tests.models.encoders import DOCUMENT, PROMPT_LENGTH, QUERY, Case, Golden, cases, save
from tests.models.nomic_reference import NomicMoeReference
from tests.models.published import checksum

N_ROWS = 4


def make(case: Case) -> Golden:
    with tempfile.TemporaryDirectory() as folder:
        reference = reference_of(case, Path(folder))
        rows = np.linspace(0, PROMPT_LENGTH - 1, N_ROWS).astype(np.int64)
        hidden = reference.hidden(case.prompt)
        score = np.empty(0, np.float32)
        if case.ranks:
            pair = pair_of(reference.folder)
            score = reference.score(*pair)
    sum_ = checksum(reference.weights)
    return Golden(reference.config, reference.shapes, sum_, rows, hidden[rows], hidden.mean(0), score)


def reference_of(case: Case, folder: Path) -> EncoderReference:
    """The case in transformers, or what was made of that."""
    return (NomicMoeReference if case.n_expert else EncoderReference)(case, folder)


def pair_of(folder: Path) -> tuple[list[int], list[int]]:
    """Ids and types of QUERY and DOCUMENT, as the `tokenizers` library puts them together."""
    tokenizer = HFTokenizer.from_file(str(folder / "tokenizer.json"))
    both = tokenizer.encode(QUERY, DOCUMENT)
    return both.ids, both.type_ids


def main(names: list[str]) -> None:
    for case in cases():
        if not names or case.name in names:
            print(save(case, make(case)))


if __name__ == "__main__":
    main(sys.argv[1:])
