"""Many processes on one prefix store, some of them killed: is every answer the one that is given without a store?

    python bench/soak/prefix_store.py --processes 16 --minutes 10

Each process opens the packaged demo model on one folder, holds conversations that begin alike, and opens it anew;
one in four is killed at a random moment, and another takes its place. A process that has no store has held the same
conversations before: its answers, and the bits of their log-probabilities, are what the others must give. In the end
every block in the folder is checked.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # for when this file is run as a program

from ollama_engine import Engine, SamplingParams, demo
from ollama_engine.runner.prefix_store.block_format import check_block
from ollama_engine.runner.prefix_store.folder_contents import files_of

SEEDS = 40
TURNS = 6
MOST_BYTES = 12 << 20
"""A bound that is reached, so that files are removed while others read them."""


def conversation(engine: Engine, seed: int) -> str:
    """A digest of the answers to one conversation, with the bits of their log-probabilities."""
    draw, digest = random.Random(seed), hashlib.sha256()
    text = "Be brief. " * draw.choice((70, 100)) + draw.choice(("Who? ", "Where? "))
    for _ in range(TURNS):
        answer = engine.generate(text, SamplingParams(temperature=0, max_tokens=draw.randint(1, 12), logprobs=1))
        assert answer.logprobs is not None
        digest.update(repr([(entry.token, entry.logprob.hex()) for entry in answer.logprobs]).encode())
        text += answer.text + draw.choice((" And then? ", " Why? " * 20))
    return digest.hexdigest()


def opened(folder: str | None) -> Engine:
    return Engine(demo.path(), num_ctx=1400, threads=1, parallel=2, draft="off", prefix_store=folder or False,
                  prefix_store_bytes=MOST_BYTES)  # fmt: skip


def hold(folder: str | None, number: int, seconds: float) -> None:
    """Hold conversations for so long, each two in an engine of their own, and print the digest of each."""
    draw, until = random.Random(number), time.monotonic() + seconds
    while time.monotonic() < until:
        with opened(folder) as engine:
            for _ in range(2):
                seed = draw.randrange(SEEDS)
                print(seed, conversation(engine, seed), engine.metrics.prefix_store_read_tokens, flush=True)


def soak(processes: int, minutes: float) -> int:
    """Run them, and return how many answers or blocks were wrong."""
    with opened(None) as engine:
        expected = [conversation(engine, seed) for seed in range(SEEDS)]
    draw, until, started, killed = random.Random(0), time.monotonic() + 60 * minutes, 0, 0
    with tempfile.TemporaryDirectory() as folder:
        outputs, running = [], list[tuple[subprocess.Popen[bytes], float]]()
        while time.monotonic() < until or running:
            while len(running) < processes and time.monotonic() < until:
                output = Path(folder, f"answers.{started}")
                outputs.append(output)
                life = draw.uniform(1, 30) if started % 4 == 0 else 1e9
                command = [sys.executable, __file__, "--hold", str(started), "--store", f"{folder}/store"]
                left = max(1.0, min(20.0, until - time.monotonic()))
                with output.open("wb") as file:
                    process = subprocess.Popen([*command, "--seconds", str(left)], stdout=file)
                running.append((process, time.monotonic() + life))
                started += 1
            time.sleep(0.05)
            for process, end in running:
                if time.monotonic() > end and process.poll() is None:
                    os.kill(process.pid, signal.SIGKILL)
                    killed += 1
            running = [(process, end) for process, end in running if process.poll() is None]
        answers = [
            line.split() for output in outputs for line in output.read_text().splitlines() if line.count(" ") == 2
        ]
        wrong = sum(expected[int(seed)] != digest for seed, digest, _ in answers)
        reads = sum(int(tokens) > 0 for _, _, tokens in answers)
        damaged, blocks = 0, [file.path for file in files_of(Path(folder, "store")) if file.path.name[0] != "."]
        for path in blocks:
            try:
                check_block(path)
            except ValueError as error:
                damaged += 1
                print(error)
    print(f"{started} processes, {killed} killed; {len(answers)} conversations, {reads} of them with stored prefixes, "
          f"{wrong} wrong; {len(blocks)} blocks left, {damaged} damaged")  # fmt: skip
    return wrong + damaged


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=16)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--hold", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--store", help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.hold is not None:
        hold(args.store, args.hold, args.seconds)
    elif soak(args.processes, args.minutes):
        sys.exit(1)


if __name__ == "__main__":
    main()
