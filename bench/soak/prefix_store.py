"""Processes on one prefix store, some of them killed: is every answer, to the bit, the one that is given without it?

    python bench/soak/prefix_store.py --conversations 1000               # each once; two processes; restarts and kills
    python bench/soak/prefix_store.py --processes 16 --minutes 10        # the same fifty again and again
    python bench/soak/prefix_store.py --processes 16 --minutes 10 --bytes 12000000   # a bound that is reached

Each process opens the packaged demo model on one folder, holds random conversations that begin alike, and opens it anew
after two of them. Half of the processes are killed at a random moment, and another holds what is left. An engine
without a store holds the same conversations: its answers, and the bits of their log-probabilities, are what the others
must give. In the end every block in the folder is checked, and, unless a bound had some removed, whether conversations
whose process was not killed are there.
"""

from __future__ import annotations

import argparse
import hashlib
import logging
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # for when this file is run as a program

from ollama_engine import Engine, SamplingParams, demo
from ollama_engine.runner.prefix_store.block_format import check_block
from ollama_engine.runner.prefix_store.folder_contents import files_of
from ollama_engine.runner.schedule.prefix_blocks import BLOCK

CACHES = ("f16", "q8_0", "q4_0", "f32", "iq4_nl")
ALIKE = 10
"""Conversations one after the other whose engines have the same type of cache."""
AGAIN = 50
"""Conversations that a run of minutes holds again and again."""
TURNS = 5
SALTS = (None, None, None, "mine")
ENOUGH_BYTES = 1 << 32


def first_text(draw: random.Random) -> str:
    """How a conversation begins: many begin alike."""
    return "Be brief. " * draw.choice((90, 100, 130)) + draw.choice(("Who? ", "Where? ", "When? "))


def conversation(engine: Engine, seed: int) -> str:
    """A digest of the answers to one conversation, with the bits of their log-probabilities."""
    draw, digest = random.Random(seed), hashlib.sha256()
    text = first_text(draw)
    salt, before = draw.choice(SALTS), [text]
    for turn in range(TURNS):
        params = SamplingParams(temperature=draw.choice((0, 1)), seed=turn, max_tokens=draw.randint(1, 24), logprobs=1)
        answer = engine.generate(text, params, cache_salt=salt)
        assert answer.logprobs is not None
        digest.update(repr([(entry.token, entry.logprob.hex()) for entry in answer.logprobs]).encode())
        text += answer.text + draw.choice((" And then? ", " Why? " * 20))
        before.append(text)
        if draw.random() < 0.3:  # an earlier turn is asked otherwise
            text = draw.choice(before) + draw.choice(("No. ", "Yes. "))
    return digest.hexdigest()


def opened(seed: int, folder: str | None, most_bytes: int) -> Engine:
    """An engine for a conversation. `folder` None: without a store."""
    logging.getLogger("ollama_engine.runner.load").setLevel(logging.ERROR)  # a context beyond the trained one
    return Engine(demo.path(), num_ctx=1400, threads=1, parallel=2, draft="off", prefix_store=folder or False,
                  prefix_store_bytes=most_bytes, kv_cache_type=CACHES[seed // ALIKE % len(CACHES)])  # fmt: skip


def hold(seeds: Sequence[int], folder: str | None, most_bytes: int) -> None:
    """Hold conversations, two at most in an engine, and print the digest of each."""
    for begin in range(0, len(seeds), 2):
        with opened(seeds[begin], folder, most_bytes) as engine:
            for seed in seeds[begin : begin + 2]:
                print(seed, conversation(engine, seed), engine.metrics.prefix_store_read_tokens, flush=True)
    print("ended", flush=True)


@dataclass
class Child:
    """A process that holds some conversations."""

    seeds: list[int]
    process: subprocess.Popen[bytes]
    output: Path
    killed_at: float | None
    """When it is killed, if it has not ended; None: never."""

    def said(self) -> list[list[str]]:
        lines = [line.split() for line in self.output.read_text().splitlines(keepends=True) if line[-1] == "\n"]
        return [line for line in lines if len(line) == 3]


@dataclass
class Run:
    """What a run has seen."""

    folder: Path
    most_bytes: int
    draw: random.Random = field(default_factory=lambda: random.Random(0))
    started: int = 0
    killed: int = 0
    broken: int = 0
    answers: dict[int, set[str]] = field(default_factory=dict)
    held: int = 0
    read: int = 0
    """Conversations with stored prefixes."""
    whole: set[int] = field(default_factory=set)
    """Conversations of processes that ended by themselves."""

    def child(self, seeds: list[int]) -> Child:
        output = self.folder / f"answers.{self.started}"
        command = [sys.executable, __file__, "--hold", *map(str, seeds), "--bytes", str(self.most_bytes)]
        with output.open("wb") as file:
            process = subprocess.Popen([*command, "--store", str(self.folder / "store")], stdout=file)
        self.started += 1
        killed_at = time.monotonic() + self.draw.uniform(0.5, 8) if self.draw.random() < 0.5 else None
        return Child(seeds, process, output, killed_at)

    def note(self, child: Child) -> list[int]:
        """Note what a process has said that has ended. Returns the seeds that are left."""
        said = child.said()
        for seed, digest, tokens in said:
            self.answers.setdefault(int(seed), set()).add(digest)
            self.read += int(tokens) > 0
        self.held += len(said)
        done = [int(seed) for seed, *_ in said]
        if child.process.returncode == 0:
            self.whole.update(done)
        elif child.process.returncode != -signal.SIGKILL:
            self.broken += 1
        child.output.unlink()
        return child.seeds[len(done) :]


def batches(draw: random.Random, conversations: int, until: float) -> Iterator[list[int]]:
    """What each process is to hold: each of so many once, or random ones until a time."""
    if conversations:
        for begin in range(0, conversations, ALIKE):
            cut = draw.randint(1, ALIKE - 1)
            yield list(range(begin, min(begin + cut, conversations)))
            yield list(range(begin + cut, min(begin + ALIKE, conversations)))
    while time.monotonic() < until:
        begin = draw.randrange(0, AGAIN, ALIKE)
        yield [begin + draw.randrange(ALIKE) for _ in range(8)]


def supervise(run: Run, processes: int, conversations: int, minutes: float) -> None:
    """Start processes and kill some, until all is held or the time is over."""
    upcoming = batches(run.draw, conversations, time.monotonic() + 60 * minutes)
    left, running = deque[list[int]](), list[Child]()
    while True:
        while len(running) < processes and (seeds := left.popleft() if left else next(upcoming, None)) is not None:
            if seeds:
                running.append(run.child(seeds))
        if not running:
            return
        time.sleep(0.02)
        for child in list(running):
            if child.process.poll() is not None:
                running.remove(child)
                rest = run.note(child)
                if conversations and rest:
                    left.append(rest)
            elif child.killed_at is not None and time.monotonic() > child.killed_at:
                os.kill(child.process.pid, signal.SIGKILL)
                child.killed_at, run.killed = None, run.killed + 1


def lost(run: Run, seeds: Sequence[int]) -> int:
    """How many conversations do not begin with what is stored, though their process has ended by itself."""
    n = 0
    for seed in seeds:
        draw = random.Random(seed)
        text = first_text(draw)
        with opened(seed, str(run.folder / "store"), run.most_bytes) as engine:
            usage = engine.generate(text, SamplingParams(max_tokens=1), cache_salt=draw.choice(SALTS)).usage
            n += usage.cached_tokens < (usage.prompt_tokens - 1) // BLOCK * BLOCK
    return n


def damaged(folder: Path) -> tuple[int, int]:
    """How many blocks there are, and how many of them are damaged."""
    n = bad = 0
    for file in files_of(folder):
        if not file.path.name.startswith("."):
            n += 1
            try:
                check_block(file.path)
            except ValueError as error:
                bad += 1
                print(error)
    return n, bad


def soak(processes: int, conversations: int, minutes: float, most_bytes: int) -> int:
    """Run them, and return how many answers or blocks were wrong, lost or damaged, or processes ended otherwise."""
    with tempfile.TemporaryDirectory() as folder:
        run = Run(Path(folder), most_bytes)
        supervise(run, processes, conversations, 0 if conversations else minutes)
        wrong = 0
        for begin in range(0, max(run.answers, default=0) + 1, ALIKE):
            with opened(begin, None, most_bytes) as engine:
                for seed in range(begin, begin + ALIKE):
                    if found := run.answers.get(seed):
                        wrong += found != {conversation(engine, seed)}
        blocks, bad = damaged(run.folder / "store")
        asked = sorted(run.whole)[:: max(1, len(run.whole) // 100)] if most_bytes >= ENOUGH_BYTES else []
        gone = lost(run, asked)
    print(f"{run.started} processes, {run.killed} killed, {run.broken} failed; {run.held} conversations, "
          f"{len(run.answers)} different, {run.read} with stored prefixes, {wrong} wrong; {blocks} blocks left, "
          f"{bad} damaged; of {len(asked)} conversations that were looked for {gone} lost")  # fmt: skip
    return wrong + bad + gone + run.broken + (len(run.answers) < conversations)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--conversations", type=int, default=0, help="hold so many, each once, instead of for minutes")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--bytes", type=int, default=ENOUGH_BYTES, help="prefix_store_bytes")
    parser.add_argument("--hold", type=int, nargs="+", help=argparse.SUPPRESS)
    parser.add_argument("--store", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.hold is not None:
        hold(args.hold, args.store, args.bytes)
    elif soak(args.processes, args.conversations, args.minutes, args.bytes):
        sys.exit(1)


if __name__ == "__main__":
    main()
