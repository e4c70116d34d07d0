"""EAGLE-3 heads beside `speculators`: each guess behind the one before, from the states of the engine's own model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ollama_engine import Engine
from ollama_engine.input import Batch, BatchMedia, FloatArray, MediaItem
from tests.models import eagle_heads, families
from tests.models.eagle_heads import Case

ALL = pytest.mark.parametrize("case", eagle_heads.cases(), ids=str)


def opened(case: Case, folder: Path) -> Engine:
    model = families.converted(case.family, folder)
    head = eagle_heads.converted(case, folder, model)
    return case.family.engine(model, draft_model=str(head), draft="model")


def states_behind(engine: Engine, prompt: list[int]) -> tuple[int, FloatArray]:
    """The token that the model draws behind a prompt, and its auxiliary states at all positions."""
    executor, states = engine._loaded.executor, []
    drawn = 0
    for begin in range(0, len(prompt), executor.max_outputs):
        batch = Batch.of(prompt[begin : begin + executor.max_outputs], begin)
        batch.outputs = np.arange(len(batch), dtype=np.int32)
        executor.prepare(batch)
        executor.launch(batch.tokens)
        with executor.results() as logits:
            drawn = int(logits[-1].argmax())
            states.append(executor.hidden())
    return drawn, np.concatenate(states)


def guess_of(engine: Engine, tokens: list[int], rows: FloatArray, begin: int) -> tuple[FloatArray, FloatArray]:
    """The head's logits behind the last of these tokens, and its state."""
    draft = engine._loaded.draft
    assert draft is not None
    batch = Batch.of(tokens, begin)
    batch.media = (BatchMedia(0, len(rows), MediaItem(0, len(rows), lambda: rows)),)
    draft.executor.prepare(batch)
    draft.executor.launch(batch.tokens, draft.executor.media_rows(batch, pytest.fail))
    with draft.executor.results() as logits:
        return logits[0].copy(), draft.executor.hidden()


@ALL
def test_guesses_are_those_of_speculators(case: Case, tmp_path: Path) -> None:
    golden, prompt = eagle_heads.load(case), case.family.prompt
    with opened(case, tmp_path) as engine:
        token, states = states_behind(engine, prompt)
        n_aux = golden.aux.shape[1]
        last = states[-len(golden.aux) :, :n_aux]
        assert np.abs(last - golden.aux).max() < case.family.tolerance * golden.aux.std()
        (source,) = {engine._submission._draft_model}
        tokens, rows = [*prompt[1:], token], np.pad(states[:, :n_aux], ((0, 0), (0, source.n_own)))
        for i, (expected, logits, own) in enumerate(zip(golden.tokens, golden.logits, golden.states, strict=False)):
            assert tokens[-1] == expected
            found, state = guess_of(engine, tokens, rows, 0 if i == 0 else len(prompt) - 1 + i)
            print(case, i, np.abs(found - logits).max() / logits.std(), np.abs(state[0] - own).max() / own.std())
            assert np.abs(found - logits).max() < case.family.tolerance * logits.std()
            assert np.abs(state[0] - own).max() < case.family.tolerance * own.std()
            tokens, rows = [source._best(found)[0]], np.pad(state, ((0, 0), (n_aux, 0)))
