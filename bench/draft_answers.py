"""Are answers with drafts those without? Random requests, with drafts by lookup, by a draft model and by heads.

    python bench/draft_answers.py [--answers 10000] [--seed 0]

Batches of 1 to 8 answers: greedy and drawn with seeds, penalties, DRY, mirostat, stop texts, log-probabilities, JSON
and choices. Each is computed without drafts, then with every guess verified, and compared: tokens, text, reason of the
end, log-probabilities. A third of them has a draft model, the packaged one, for a model that is made of it, and a third
the heads of two made models, one of which is recurrent. Ends with the first difference.
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
from tests.models import families
from tests.models.heads import agreeing, converted
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
        cases = [families.case(name) for name in ("glm4moe", "qwen35")]
        heads = [converted(case, Path(folder) / case.name, agreeing(case)) for case in cases]
        ways: list[tuple[Drafting, str | Path, Path | None, float]] = [
            ("lookup", deeper, None, 1 / 3), ("model", deeper, demo.path(), 1 / 3),
            *(("mtp", head, None, 1 / 6) for head in heads),
        ]  # fmt: skip
        for way, path, model, share in ways:
            counts: Counter[str] = Counter()
            with Engine(path, draft=way, draft_model=model, **options) as engine, eager(by_model=way != "lookup"):
                while counts["answers"] < args.answers * share:
                    counts += compared(engine, rng, int(rng.integers(1, MOST + 1)))
            seconds = time.perf_counter() - begin
            print(
                f"{way}: {', '.join(f'{n} {name}' for name, n in counts.items())}: all equal; {seconds:.0f} s",
                flush=True,
            )


if __name__ == "__main__":
    main()
