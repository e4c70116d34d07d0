"""Write the goldens: `python -m tests.models.make_goldens [case ...]`, with torch and transformers installed."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np

from tests.models.cases import CASES, LEAD, Case
from tests.models.golden import Golden, checksum, rows_of, save
from tests.models.reference import Reference


def make(case: Case, folder: Path) -> Path:
    model = case.write(folder)
    reference = Reference(case, model)
    rows = rows_of(case)
    tokens = reference.greedy() if case.greedy else []
    if tokens:
        _, leads = reference.best_after(case.prompt + tokens)
        lead = leads[case.prompt_length - 1 : -1].min()
        if lead < LEAD:
            raise SystemExit(f"{case.name}: two tokens are {lead:.1e} apart in one step; choose another seed")
    logits = reference.logits(case.prompt)[rows]
    return save(case, Golden(checksum(model.weights), rows, logits, np.asarray(tokens, dtype=np.int64)))


def main(names: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for case in CASES:
            if not names or case.name in names:
                print(make(case, Path(folder)))


if __name__ == "__main__":
    main(sys.argv[1:])
