"""Layers that share keys and values of earlier ones compute the rows of a batch that are asked for, and no others."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ollama_engine.input import Batch
from tests.models import families
from tests.models.cases import difference
from tests.models.variants import loaded, prompt


@pytest.mark.parametrize("name", ["gemma4-small", "gemma3n"])
def test_a_few_rows_of_a_prompt_are_what_they_are_token_by_token(name: str, tmp_path: Path) -> None:
    path = families.converted(families.case(name), tmp_path)
    ids, asked = prompt(70), [25, 40, 69]
    with loaded(str(path)) as parts:
        few = parts.executor.run(Batch.of(ids, 0, sequence=0, outputs=asked)).copy()
        alone = [parts.executor.run(Batch.of([id_], at, sequence=1)).copy()[0] for at, id_ in enumerate(ids)]
    assert difference(few, np.stack([alone[at] for at in asked])) <= 1e-5
