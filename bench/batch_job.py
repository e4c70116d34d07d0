"""Many prompts through Ray Data, killed in the middle and run again: is every prompt answered once, and how fast?

    python bench/batch_job.py --rows 100000 --kill-engine-at 25000 --kill-at 50000

The job runs in processes of its own, two of them with an engine of the demo model. Once so many answers are in its
checkpoint, first one of these two, then the process that started the job is killed (kill -9). The job is then run again
to the end. What it returns and what the checkpoint holds is counted.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.ray.ray_environment import command, kill, processes, ray_environment, wait_for_end


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
        print("row", row["id"])
    ray.shutdown()


def kept(folder: Path) -> Counter[int]:
    """How often each row is answered in the checkpoint."""
    lines = [line for file in folder.glob("*.jsonl") for line in file.read_bytes().splitlines(keepends=True)]
    rows = [json.loads(line) for line in lines if line.endswith(b"\n")]
    return Counter(row["key"] for row in rows if "key" in row)


def n_kept(folder: Path) -> int:
    return sum(max(0, file.read_bytes().count(b"\n") - 1) for file in folder.glob("*.jsonl"))


def run(folder: Path, output: Path, kill_engine_at: int, kill_job_at: int) -> None:
    """The job, once: one of its engines, and the job itself, are killed when that many answers are there."""
    began, last_line, engine_killed = time.monotonic(), 0.0, False
    started = [sys.executable, __file__, *sys.argv[1:], "--job", str(folder)]
    with ray_environment() as variables, output.open("wb") as out:
        with subprocess.Popen(started, stdout=out, env=variables) as child:
            while child.poll() is None:
                time.sleep(0.5)
                there, seconds = n_kept(folder), time.monotonic() - began
                if seconds - last_line >= 20:
                    print(f"{seconds:4.0f} s: {there} rows answered", flush=True)
                    last_line = seconds
                if there >= kill_engine_at and not engine_killed:
                    engine_killed = kill_an_engine(variables["RAY_TMPDIR"])
                    print(f"{seconds:4.0f} s: an engine's process is killed, {there} rows answered", flush=True)
                if there >= kill_job_at:
                    print(f"{seconds:4.0f} s: the job's own process is killed, {there} rows answered", flush=True)
                    child.kill()
                    child.wait()
        if child.returncode > 0:
            raise SystemExit(f"the job ended with {child.returncode}")
        ended = time.monotonic()
        wait_for_end(variables["RAY_TMPDIR"])
        print(
            f"{ended - began:4.0f} s; the last of its processes ended {time.monotonic() - ended:.0f} s later",
            flush=True,
        )


def kill_an_engine(ray_folder: str) -> bool:
    """False where none runs."""
    engines = [pid for pid in processes(ray_folder) if command(pid).startswith("ray::MapWorker(MapBatches(BatchGen")]
    for pid in engines[:1]:
        kill(pid)
    return bool(engines)


def ids(output: Path) -> list[int]:
    """Ids of the rows that came out. The last line of a job that was killed may be half a line; Ray writes others."""
    lines = output.read_bytes().splitlines(keepends=True)
    return [int(line.split()[1]) for line in lines if line.startswith(b"row ") and line.endswith(b"\n")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--kill-engine-at", type=int, default=25_000)
    parser.add_argument("--kill-at", type=int, default=50_000)
    parser.add_argument("--max-tokens", type=int, default=8)
    parser.add_argument("--job", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.job is not None:
        job(args.job, args)
        return
    with tempfile.TemporaryDirectory() as place:
        folder, output = Path(place) / "answers", Path(place) / "out"
        run(folder, output, args.kill_engine_at, args.kill_at)
        there = kept(folder)
        print(f"killed: {len(ids(output))} rows had come out; {len(there)} in the checkpoint, "
              f"{max(there.values())} times at most")  # fmt: skip
        run(folder, output, sys.maxsize, sys.maxsize)
        out, now = ids(output), kept(folder)
        print(f"run again: {len(out)} rows came out, {len(set(out))} different ones; "
              f"{len(now)} in the checkpoint, {max(now.values())} times at most")  # fmt: skip
        whole = sorted(out) == list(range(args.rows)) and now == Counter(range(args.rows))
        print("every row once:", whole)
        raise SystemExit(not whole)


if __name__ == "__main__":
    main()
