"""Are answers with drafts those without? Random requests on the packaged model, by lookup and by a draft model.

    python bench/draft_answers.py [--answers 10000] [--seed 0]

Batches of 1 to 8 answers: greedy and drawn with seeds, penalties, DRY, mirostat, stop texts, log-probabilities, JSON
and choices. Each is computed without drafts, then with every guess verified, and compared: tokens, text, reason of the
end, log-probabilities. Half of them have a draft model, the packaged one, for a model that is made of it. Ends with the
first difference.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from ollama_engine import Engine, demo
from ollama_engine.config import Drafting
from tests.support.deeper_model import write_deeper
from tests.support.drafted_answers import compared, eager

MOST = 8
"""Answers of a batch."""


def main() -> None:
    """Compare as many answers as asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--answers", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    rng, begin = np.random.default_rng(args.seed), time.perf_counter()
    options: dict[str, Any] = {"num_ctx": 256, "parallel": MOST, "threads": 1, "verify": True}
    with tempfile.TemporaryDirectory() as folder:
        deeper = write_deeper(demo.path(), Path(folder) / "deeper.gguf", copies=1, scale=0.05)
        ways: tuple[tuple[Drafting, Path | None], ...] = (("lookup", None), ("model", demo.path()))
        for way, model in ways:
            counts: Counter[str] = Counter()
            by_model = model is not None
            with Engine(deeper, draft=way, draft_model=model, **options) as engine, eager(by_model=by_model):
                while counts["answers"] < args.answers // 2:
                    counts += compared(engine, rng, int(rng.integers(1, MOST + 1)))
            seconds = time.perf_counter() - begin
            print(
                f"{way}: {', '.join(f'{n} {name}' for name, n in counts.items())}: all equal; {seconds:.0f} s",
                flush=True,
            )


if __name__ == "__main__":
    main()
