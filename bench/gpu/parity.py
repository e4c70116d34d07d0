"""One model on a device beside the CPU, in a process of its own: a library that ends its process ends no report.

    python -m bench.gpu.parity --device Vulkan0 --model demo      # a JSON row for each setting

`compare_all` starts these and collects their rows.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from bench.gpu.children import status_of
from bench.gpu.models import N_TOKENS, Request, Setting, Subject, subjects
from bench.gpu.verdicts import Answer, Row, compare_answers, compare_logits, limit

ROOT = Path(__file__).resolve().parents[2]
CHILD_SECONDS = 1800.0
N_TOP = 20
"""Log-probabilities for each token; a token of the device is looked for among those of the CPU."""


# -- the child ---------------------------------------------------------------------------------------------------------


def compare(subject: Subject, device: str, folder: Path, threads: int | None = None) -> Iterator[Row]:
    """A row for each setting of the model. `threads`: of the CPU's engine."""
    opened = subject.open(folder)
    if opened is None:
        yield Row(subject.name, "-", error="the model cannot be downloaded here")
        return
    path, request = opened
    for setting in subject.settings:
        allowed = limit(
            setting.cache, quantized=subject.quantized, mixture=subject.mixture, recurrent=subject.recurrent
        )
        try:
            results = _figures(path, request, setting, {"num_ctx": subject.num_ctx, "threads": threads}, device)
        except Exception as error:  # (a row of the report, whatever it is)
            yield Row(subject.name, str(setting), limit=allowed, error=f"{type(error).__name__}: {error}")
        else:
            yield Row(subject.name, str(setting), limit=allowed, **results)


def _figures(
    path: str, request: Request, setting: Setting, options: dict[str, Any], device: str
) -> dict[str, Any]:  # fmt: skip
    cpu_answer, cpu_logits = _compute(path, request, options | setting.options(None))
    answer, logits = _compute(path, request, options | setting.options(device))
    deviation = float(cpu_logits.std())
    return {**compare_answers(cpu_answer, answer, deviation), **compare_logits(cpu_logits, logits)}


def _compute(path: str, request: Request, options: dict[str, Any]) -> tuple[Answer, Any]:
    from ollama_engine import Engine, SamplingParams  # noqa: PLC0415 (a child's; the parent has no use for it)

    params = SamplingParams(temperature=0, max_tokens=N_TOKENS, logprobs=N_TOP, logit_bias=dict(request.banned))
    with Engine(path, parallel=1, **options) as engine:
        found = engine.generate(request.prompt, params)
        logits = engine.logits(request.logits_of).copy()
    return Answer(found.tokens, tuple(dict(entry.top) for entry in found.logprobs or ())), logits


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--threads", type=int)
    chosen = parser.parse_args()
    subject = next(subject for subject in subjects() if subject.name == chosen.model)
    with tempfile.TemporaryDirectory(prefix="oe-gpu-") as folder:
        for row in compare(subject, chosen.device, Path(folder), chosen.threads):
            print(json.dumps(row.as_json()), flush=True)


# -- the parent --------------------------------------------------------------------------------------------------------


def compare_all(device: str, names: Sequence[str], tell: Callable[[str], None], jobs: int = 1) -> list[Row]:
    """Rows of all models, in their order, `jobs` models at a time; one whose process ends early has a row that says so.

    Most of the time of a tiny model is that of two drivers that start, so jobs share the CPUs.
    """
    threads = max(1, (os.cpu_count() or 1) // jobs)

    def rows_of(name: str) -> list[Row]:
        command = [sys.executable, "-m", "bench.gpu.parity", "--device", device, "--model", name]
        made = run_child(name, command if jobs == 1 else [*command, "--threads", str(threads)])
        tell(f"parity: {name}: {sum(row.passed for row in made)} of {len(made)} passed")
        for row in made:
            if not row.passed:
                tell(f"  FAILED {name}, {row.setting}: {row.error or figures(row)}")
        return made

    with ThreadPoolExecutor(jobs) as pool:
        return [row for made in pool.map(rows_of, names) for row in made]


def run_child(name: str, command: Sequence[str], seconds: float = CHILD_SECONDS) -> list[Row]:
    """The rows that a child prints, and one of its end where that is not the one of a finished program."""
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=said)
        status = status_of(process, seconds)
        output.seek(0)
        said.seek(0)
        rows = [Row(**json.loads(line)) for line in output if line.startswith("{")]
        if status != 0:
            last = [line.strip() for line in said.read().splitlines() if line.strip()][-1:]
            rows.append(Row(name, "process", error=f"ended with {status}: {' '.join(last)}"))
    return rows


def figures(row: Row) -> str:
    """A row's figures in one line, for a terminal."""
    apart = "" if row.lead is None else f", parted at a lead of {row.lead:.3f}"
    found = " ".join(f"{n} {v:.4f}" for n, v in (("answer", row.answer), ("largest", row.largest)) if v is not None)
    return f"{row.equal} of {row.tokens} tokens{apart}; {found}; limit {row.limit:g}"


if __name__ == "__main__":
    main()
