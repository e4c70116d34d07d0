"""EAGLE-3 heads beside llama.cpp's: every guess of a whole answer, where all of them are wrong and go back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from ollama_engine import Engine
from ollama_engine.runner.speculative.guessing import DraftPart, Guess, GuessingDrafter
from tests.models.eagle_peers import AHEAD, FILE, HEADS, PARAMS, TEXT, PeerAnswer, files
from tests.support import drafted_answers


@pytest.mark.parametrize("name", HEADS)
def test_guesses_are_those_of_llama_cpp(name: str, tmp_path: Path) -> None:
    golden: PeerAnswer = json.loads(FILE.read_text())[name]
    made: dict[str, list[int]] = {}

    def noted(drafter: GuessingDrafter, part: DraftPart, guess: Guess) -> bool:
        is_guess = take(drafter, part, guess)
        if is_guess:
            made.setdefault(str(len(drafter._tokens)), []).append(guess.token)
        return is_guess

    take = GuessingDrafter.take
    model, head = files(name, tmp_path)
    options: dict[str, Any] = {
        "num_ctx": 256,
        "threads": 1,
        "gpu_layers": 0,
        "kv_cache_type": "f32",
        "flash_attention": "off",
    }
    with (
        Engine(model, draft_model=str(head), draft="model", **options) as engine,
        drafted_answers.eager(AHEAD, by_model=True),
        patch.object(GuessingDrafter, "take", noted),
    ):
        answer = engine.generate(TEXT, PARAMS)
    assert list(answer.tokens) == golden["answer"]
    expected = {length: golden["guesses"][length][: len(guesses)] for length, guesses in made.items()}
    assert made == expected
    assert sum(map(len, made.values())) > 100
