"""Special tokens: four files speak of them, all ends are kept, and our tokenizer stops at each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ollama_engine.tokenizer import from_gguf
from tests.convert.folders import bpe_tokenizer
from tests.convert.vocab.exporting import export
from tests.support.tiny import SPECIALS

N = 320
BEGIN, END, TURN = range(N - 3, N)  # <|begin_of_text|>, <|end_of_text|>, <|eot_id|>


def exported(folder: Path, config: dict[str, Any] | None = None, **files: Any) -> dict[str, Any]:
    named = {f"{name}.json": values for name, values in files.items()}
    return export(folder, {"tokenizer.json": bpe_tokenizer(N), **named}, N, config)


def test_each_file_is_asked_in_turn(tmp_path: Path) -> None:
    keys = exported(
        tmp_path,
        {"bos_token_id": 5, "eos_token_id": END, "pad_token_id": 7},
        tokenizer_config={"bos_token": SPECIALS[0]},
        special_tokens_map={"eos_token": {"content": SPECIALS[2]}},
        generation_config={"pad_token_id": 8, "sep_token_id": 9},
    )
    expected = {"bos_token_id": BEGIN, "eos_token_id": TURN, "padding_token_id": 7, "seperator_token_id": 9}
    assert {key: keys[key] for key in expected} == expected
    assert keys["eos_token_ids"].tolist() == [TURN, END]


def test_tokens_that_are_never_sampled_are_stored(tmp_path: Path) -> None:
    """As int32, which llama.cpp insists on; one that is no token is left out."""
    keys = exported(tmp_path, generation_config={"suppress_tokens": [4, 7, N, -1]})
    assert keys["suppress_tokens"].tolist() == [4, 7]
    assert keys["suppress_tokens"].dtype == np.int32
    assert from_gguf(tmp_path / "vocab.gguf").suppressed_ids == {4, 7}
    assert "suppress_tokens" not in exported(tmp_path, generation_config={"suppress_tokens": None})


ENDS = [
    # (config.json, generation_config.json) -> (eos_token_id, eot, eom, all)
    ({"eos_token_id": END}, {}, (END, None, None, None)),
    ({"eos_token_id": END}, {"eos_token_id": END}, (END, None, None, None)),
    ({"eos_token_id": [END, TURN]}, {}, (END, TURN, None, [END, TURN])),
    ({"eos_token_id": END}, {"eos_token_id": [END, 300, TURN]}, (END, TURN, None, [END, 300, TURN])),
    ({}, {"eos_token_id": [300, 301]}, (300, None, None, [300, 301])),
    ({"eos_token_id": -1}, {"eos_token_id": [END, 999]}, (END, None, None, None)),
]


@pytest.mark.parametrize(("config", "generation", "expected"), ENDS)
def test_all_ends_are_stored_and_honoured(
    config: dict[str, Any], generation: dict[str, Any], expected: tuple[Any, ...], tmp_path: Path
) -> None:
    found = exported(tmp_path, config, generation_config=generation)
    several = found.get("eos_token_ids")
    assert (
        found["eos_token_id"], found.get("eot_token_id"), found.get("eom_token_id"),
        None if several is None else several.tolist(),
    ) == expected  # fmt: skip
    assert from_gguf(tmp_path / "vocab.gguf").eog_ids >= {expected[0], *(expected[3] or ())}


def test_what_is_put_behind_every_text_is_the_end(tmp_path: Path) -> None:
    """Qwen3-Embedding puts another token there than tokenizer_config.json names."""
    tokenizer = bpe_tokenizer(N)
    single = [{"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": SPECIALS[1], "type_id": 0}}]
    tokenizer["post_processor"] = {
        "type": "Sequence",
        "processors": [{"type": "ByteLevel"}, {"type": "TemplateProcessing", "single": single}],
    }
    files = {
        "tokenizer.json": tokenizer,
        "tokenizer_config.json": {"eos_token": SPECIALS[2], "add_bos_token": False},
    }
    keys = export(tmp_path, files, N, {"eos_token_id": END})
    assert (keys["eos_token_id"], keys["eot_token_id"], keys["add_eos_token"]) == (END, TURN, True)
    assert from_gguf(tmp_path / "vocab.gguf").encode("a")[-1] == END


def test_ids_outside_of_the_vocabulary_are_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    found = exported(tmp_path, {"bos_token_id": 999}, tokenizer_config={"eos_token": "<nowhere>"})
    assert "bos_token_id" not in found
    assert "bos_token_id 999 is outside of the 320 tokens; it is left out" in caplog.text
    assert "eos_token is '<nowhere>', which is no token" in caplog.text


NAMES = {"bos_token": SPECIALS[0], "eos_token": SPECIALS[1], "cls_token": SPECIALS[0], "sep_token": SPECIALS[1]}


def template(first: str | None, last: str | None) -> dict[str, Any]:
    def special(text: str) -> dict[str, Any]:
        return {"SpecialToken": {"id": text, "type_id": 0}}

    middle = {"Sequence": {"id": "A", "type_id": 0}}
    steps = [*([special(first)] if first else []), middle, *([special(last)] if last else [])]
    return {"type": "TemplateProcessing", "single": steps}


FLAGS = {
    "template-bos": (template(SPECIALS[0], None), {}, {"bos": True, "eos": False}),
    "template-eos": (template(None, SPECIALS[1]), {}, {"bos": False, "eos": True}),
    "template-other": (template(SPECIALS[2], None), {}, {"bos": False, "eos": False}),
    "bytes-only": ({"type": "ByteLevel"}, {}, {"bos": False, "eos": False}),
    "sequence": ({"type": "Sequence", "processors": [{"type": "ByteLevel"}, template(SPECIALS[0], None)]}, {},
                 {"bos": True, "eos": False}),
    "over-config": (template(SPECIALS[0], None), {"add_bos_token": False}, {"bos": True, "eos": False}),
    "roberta": ({"type": "RobertaProcessing"}, {}, {"bos": True, "eos": True, "sep": True}),
    "none": (None, {"add_bos_token": True}, {"bos": False, "eos": False}),
}  # fmt: skip


@pytest.mark.parametrize("name", FLAGS)
def test_what_is_added_to_a_text(name: str, tmp_path: Path) -> None:
    processor, config, expected = FLAGS[name]
    values = {**bpe_tokenizer(N), "post_processor": processor}
    files = {"tokenizer.json": values, "tokenizer_config.json": {**NAMES, **config}}
    found = export(tmp_path, files, N)
    assert {k: found[f"add_{k}_token"] for k in ("bos", "eos", "sep") if f"add_{k}_token" in found} == expected


def test_without_a_post_processor_the_config_counts(tmp_path: Path) -> None:
    values = bpe_tokenizer(N)
    del values["post_processor"]
    config = {**NAMES, "add_bos_token": True, "add_eos_token": True}
    found = export(tmp_path, {"tokenizer.json": values, "tokenizer_config.json": config}, N)
    assert (found["add_bos_token"], found["add_eos_token"]) == (True, True)
