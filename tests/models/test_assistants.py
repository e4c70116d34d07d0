"""Assistants beside transformers: each guess behind the one before, from the model's own states and cache."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ollama_engine import Engine
from ollama_engine.input import Batch, BatchMedia, FloatArray, MediaItem
from tests.models import assistants, families
from tests.models.assistants import Case

ALL = pytest.mark.parametrize("case", assistants.cases(), ids=str)


def opened(case: Case, folder: Path, **options: object) -> Engine:
    model, assistant = families.converted(case.family, folder), assistants.converted(case, folder)
    return case.family.engine(model, draft_model=str(assistant), draft="model", **options)


def states_behind(engine: Engine, prompt: list[int]) -> tuple[int, FloatArray]:
    """The token that the model draws behind a prompt, and the state that it draws it from; the cache has the prompt."""
    executor = engine._loaded.executor
    executor.prepare(Batch.of(prompt, 0))
    executor.launch(np.array(prompt, np.int32))
    with executor.results() as logits:
        return int(logits[0].argmax()), executor.hidden()


def guess_of(engine: Engine, token: int, state: FloatArray, position: int) -> tuple[FloatArray, FloatArray]:
    """The assistant's logits, and the state for its next guess."""
    draft = engine._loaded.draft
    assert draft is not None
    batch = Batch.of([token], position - 1)
    batch.axes = np.array([position], np.int32)
    batch.media = (BatchMedia(0, 1, MediaItem(0, 1, lambda: state)),)
    draft.executor.prepare(batch)
    draft.executor.launch(batch.tokens, draft.executor.media_rows(batch, pytest.fail))
    with draft.executor.results() as logits:
        return logits[0].copy(), draft.executor.hidden()[:, : state.shape[1]]


@ALL
def test_guesses_are_those_of_transformers(case: Case, tmp_path: Path) -> None:
    golden, prompt = assistants.load(case), case.family.prompt
    with opened(case, tmp_path) as engine:
        token, state = states_behind(engine, prompt)
        for expected, logits, states in zip(golden.tokens, golden.logits, golden.states, strict=False):
            assert token == expected
            found, state = guess_of(engine, token, state, len(prompt))
            assert np.abs(found - logits).max() < case.family.tolerance * logits.std()
            assert np.abs(state[0] - states).max() < case.family.tolerance * states.std()
            token = int(found.argmax())
