"""Llama's own SentencePiece vocabulary, which LLaVA has too: ids of llama.cpp's test texts, and around images."""

from __future__ import annotations

from pathlib import Path

import pytest

from ollama_engine.runner.core.text_runs import run_ids, text_runs
from ollama_engine.segments import Media, Segment, Text
from ollama_engine.tokenizer import Tokenizer, from_gguf
from tests.support.pinned_sources import pinned

BOS = 1
AROUND_IMAGES = [
    (("USER: ", "\nWhat is in the picture? ASSISTANT:"),
     [[3148, 1001, 29901, 29871],
      [29871, 13, 5618, 338, 297, 278, 7623, 29973, 319, 1799, 9047, 13566, 29901]]),
    (("A chat.\nUSER: ", " and ", " differ? ASSISTANT:"),
     [[319, 13563, 29889, 13, 11889, 29901, 29871], [29871, 322, 29871],
      [29871, 1163, 29973, 319, 1799, 9047, 13566, 29901]]),
    (("", "What colour?\nASSISTANT:"), [[], [1724, 12384, 29973, 13, 22933, 9047, 13566, 29901]]),
    (("Bild:\n\n", "  日本 und Straße 😀\n"),
     [[11679, 29901, 13, 13], [1678, 30325, 30346, 563, 22667, 29871, 243, 162, 155, 131, 13]]),
]  # fmt: skip
"""Texts between images, and llama.cpp's ids of each, as its library (bench/peer_llama.py) has them: what follows an
image begins with the space that the vocabulary puts before a text."""


@pytest.fixture(scope="module")
def folder() -> Path:
    return pinned("llama-vocabulary", "ggml-vocab-llama-spm.gguf*", 3)


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return from_gguf(folder / "ggml-vocab-llama-spm.gguf")


def test_ids_of_llama_cpps_own_texts(tokenizer: Tokenizer, folder: Path) -> None:
    texts = (folder / "ggml-vocab-llama-spm.gguf.inp").read_text(encoding="utf-8").split("\n__ggml_vocab_test__\n")
    ids = [list(map(int, row.split())) for row in (folder / "ggml-vocab-llama-spm.gguf.out").read_text().splitlines()]
    assert [tokenizer.encode(text, add_special=False) for text in texts[: len(ids)]] == ids
    assert len(ids) == 46


@pytest.mark.parametrize(("texts", "ids"), AROUND_IMAGES)
def test_ids_around_images(texts: tuple[str, ...], ids: list[list[int]], tokenizer: Tokenizer) -> None:
    """LLaVA puts nothing around an image, so each text is tokenized by itself."""
    segments: list[Segment] = [Text(texts[0], parse_special=True)]
    for text in texts[1:]:
        segments += [Media(b""), Text(text, parse_special=True)]
    runs = [run for run in text_runs(segments) if isinstance(run, list)]
    found = [
        run_ids(tokenizer, [(part.text, part.parse_special) for part in run], None, begins=number == 0, ends=False)
        for number, run in enumerate(runs)
    ]
    assert found == [[BOS, *ids[0]], *ids[1:]]
