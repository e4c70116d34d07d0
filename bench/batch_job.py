"""Many prompts through Ray Data, killed in the middle and run again: is every prompt answered once, and how fast?

    python bench/batch_job.py --rows 100000 --kill-at 50000

The job runs in processes of its own, two engines of the demo model. It is killed (kill -9) once that many answers are
in its checkpoint, and then run again to the end. What it returns and what the checkpoint holds is counted.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))


def job(folder: Path, args: argparse.Namespace) -> None:
    """The job itself: prints the id of every row that comes out."""
    import ray  # noqa: PLC0415 (the other process needs none)

    from ollama_engine import SamplingParams, demo  # noqa: PLC0415
    from ollama_engine.ray import BatchGenerator  # noqa: PLC0415

    ray.init(address="local", include_dashboard=False, num_cpus=2, object_store_memory=200 << 20,
             log_to_driver=False, logging_level="ERROR")  # fmt: skip
    ray.data.DataContext.get_current().enable_progress_bars = False
    rows = ray.data.range(args.rows, override_num_blocks=max(4, args.rows // 2000))
    answers = rows.map(lambda row: {**row, "prompt": f"On day {row['id']}, the fox"}).map_batches(
        BatchGenerator,
        fn_constructor_args=[str(demo.path()), SamplingParams(max_tokens=args.max_tokens, temperature=0)],
        fn_constructor_kwargs={"engine": {"num_ctx": 64, "parallel": 64, "threads": 1}, "id_column": "id",
                               "checkpoint": str(folder)},
        compute=ray.data.ActorPoolStrategy(size=2), batch_size=1000, num_cpus=0.5,
    )  # fmt: skip
    for row in answers.iter_rows():
        print(row["id"])
    ray.shutdown()


def kept(folder: Path) -> Counter[int]:
    """How often each row is answered in the checkpoint."""
    lines = [line for file in folder.glob("*.jsonl") for line in file.read_bytes().splitlines(keepends=True)]
    rows = [json.loads(line) for line in lines if line.endswith(b"\n")]
    return Counter(row["key"] for row in rows if "key" in row)


def n_kept(folder: Path) -> int:
    return sum(max(0, file.read_bytes().count(b"\n") - 1) for file in folder.glob("*.jsonl"))


def run(folder: Path, output: Path, stop_at: int) -> tuple[float, list[int]]:
    """Seconds, and the ids that came out, of a job that is killed when `stop_at` answers are there."""
    began = time.monotonic()
    with output.open("wb") as out:
        command = [sys.executable, __file__, *sys.argv[1:], "--job", str(folder)]
        child = subprocess.Popen(command, stdout=out, env={**os.environ, "RAY_USAGE_STATS_ENABLED": "0"})
        while child.poll() is None:
            time.sleep(0.5)
            if n_kept(folder) >= stop_at:
                child.kill()
        if child.returncode > 0:
            raise SystemExit(f"the job ended with {child.returncode}")
    whole = [line for line in output.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]
    return time.monotonic() - began, [int(line) for line in whole]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--kill-at", type=int, default=50_000)
    parser.add_argument("--max-tokens", type=int, default=8)
    parser.add_argument("--job", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.job is not None:
        job(args.job, args)
        return
    with tempfile.TemporaryDirectory() as place:
        folder, output = Path(place) / "answers", Path(place) / "out"
        seconds, out = run(folder, output, args.kill_at)
        there = kept(folder)
        print(f"killed after {seconds:.0f} s: {len(there)} rows answered, {max(there.values())} times at most")
        seconds, out = run(folder, output, sys.maxsize)
        now = kept(folder)
        print(f"run again, {seconds:.0f} s: {len(out)} rows came out, {len(set(out))} different ones; "
              f"{len(now)} in the checkpoint, {max(now.values())} times at most")  # fmt: skip
        print("every row once:", sorted(out) == list(range(args.rows)) and now == Counter(range(args.rows)))


if __name__ == "__main__":
    main()
