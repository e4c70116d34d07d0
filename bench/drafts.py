"""Drafts beside answers without them: how many times as fast, with an interval; and llama.cpp's own beside ours.

    python bench/drafts.py [MODEL] [--clients 1 4] [--rounds 6] [--kinds edit JSON ...] [--draft lookup] [--beside]
                           [--notes FILE] [--deeper FILE]
    python bench/drafts.py servers [MODEL] [--clients 1 4] [--rounds 3] [--kinds code JSON ...] [--ways lookup ...]

MODEL is SmolLM2 135M by default. Kinds of answers: a file that is written again with an edit, which is dictated
(`draft_texts.py` says why), JSON with a schema, and, as the model writes them, code, JSON, a summary with quotations,
and text drawn at a high temperature, which repeats nothing. Prompts are cached when the time is taken.

The first command asks one engine with drafts and without in turn, and prints seconds without drafts over seconds with
them: the median of the rounds, and the values between which their true median lies. Both answers of a pair have the
same tokens, or the program fails. With `--beside` another caller has one prompt of 2,000 tokens after the other read.
`--draft model` has MODEL draft for one that is made of it, 8 times as deep, kept where `--deeper` says, and asks
questions. With `--notes` the rounds of earlier runs count, too, so that the machine need not be idle for long.
`servers` compares tokens/s over HTTP, with servers started anew for each round.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from pathlib import Path
from threading import Event
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for when this file is run as a program

from bench.draft_servers import compare_servers
from bench.draft_texts import KINDS, Dictated, Text, texts
from bench.real_model import real_model
from ollama_engine import ChatResult, Engine, SamplingParams
from ollama_engine.config import Drafting
from tests.support.deeper_model import write_deeper

ROOT = Path(__file__).resolve().parents[1]
N_ANSWER = 128


def median_interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float, float]:
    """(low, high, confidence): two of these values, between which the median of what they are drawn from lies.

    By order statistics, which assume nothing of the distribution: the narrowest pair of at least this confidence, or
    least and greatest where these have less.
    """
    n, kept = len(values), sorted(values)
    cut = 0
    while 2 * (cut + 1) < n and _between(n, cut + 1) >= confidence:
        cut += 1
    return kept[cut], kept[n - 1 - cut], _between(n, cut)


def _between(n: int, cut: int) -> float:
    """The chance that a median lies between n values but the `cut` least and greatest."""
    return float(1 - 2 * sum(math.comb(n, i) for i in range(cut + 1)) / 2**n)


class Bench:
    """Asks one engine for the texts of a kind, with drafts and without."""

    def __init__(self, engine: Engine, kind: str, clients: int, drafting: Drafting) -> None:
        self._engine = engine
        self._kind = kind
        self._clients = clients
        self._drafting = drafting
        self._texts = texts(kind)
        self.ratios: list[float] = []
        self.counts: Counter[str] = Counter()

    def round(self, number: int) -> None:
        """Ask once with drafts and once without: one client for four texts, each in turn, several for two each."""
        seconds = {self._drafting: 0.0, "off": 0.0}
        turns = range(4 if self._clients == 1 else 1)
        for turn in turns:
            pair: list[Drafting] = [self._drafting, "off"] if (turn + number) % 2 else ["off", self._drafting]
            answers = {}
            for draft in pair:
                took, answers[draft] = self._ask(draft, turn, f"{self._kind} {number} {draft}")
                seconds[draft] += took
            if answers["off"] != answers[self._drafting]:
                raise SystemExit(f"{self._kind}: drafts have changed an answer")
        self.ratios.append(seconds["off"] / seconds[self._drafting])

    def _ask(self, draft: Drafting, turn: int, salt: str) -> tuple[float, list[list[int]]]:
        """(seconds, tokens of each answer). Those of one salt may be looked up: other texts of this round.

        Seconds are those that all tokens take at the speed of the time in which all clients are busy. Without drafts
        answers of one length end together, and with them some callers would wait at the end for others.
        """
        n = 1 if self._clients == 1 else 2 * self._clients
        asked = [self._texts[(turn + i) % len(self._texts)] for i in range(n)]
        for text in asked:
            self._answer(text, "off", salt, 1)
        waiting = enumerate(asked)  # of all clients: who has an answer asks for the next one
        done: dict[int, ChatResult[Any]] = {}
        idle: list[tuple[float, int]] = []
        before, begin = self._engine.metrics.completion_tokens, time.perf_counter()

        def ask() -> None:
            for i, text in waiting:
                done[i] = self._answer(text, draft, salt, N_ANSWER)
            idle.append((time.perf_counter(), self._engine.metrics.completion_tokens))

        with ThreadPoolExecutor(self._clients) as pool:
            for client in [pool.submit(ask) for _ in range(self._clients)]:
                client.result()
        for answer in done.values():
            if draft != "off":
                self.counts["tokens"] += answer.usage.completion_tokens
                self.counts["drafted"] += answer.usage.drafted_tokens
                self.counts["accepted"] += answer.usage.accepted_tokens
        end, tokens = idle[0]
        found = [list(done[i].tokens) for i in range(n)]
        return (end - begin) * sum(map(len, found)) / (tokens - before), found

    def _answer(self, text: Text, draft: Drafting, salt: str, most: int) -> ChatResult[Any]:
        engine, params = self._engine, SamplingParams(max_tokens=most, **text.sampling)
        messages = [{"role": "user", "content": text.prompt}]
        written = engine.tokenize(text.answer, add_special=False) if isinstance(text.answer, str) else text.answer
        processors = [] if written is None else [Dictated(written)]
        return engine.chat(
            messages, params, draft=draft, cache_salt=salt, format=text.format, logits_processors=processors
        )

    def note(self, path: Path) -> None:
        """Add the rounds to those that a file has, and those to these."""
        noted = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        before = noted.setdefault(f"{self._clients} {self._kind} {self._drafting}", {"ratios": [], "counts": {}})
        self.ratios = [*before["ratios"], *self.ratios]
        self.counts.update(before["counts"])
        before.update(ratios=self.ratios, counts=self.counts)
        path.write_text(json.dumps(noted), encoding="utf-8")

    def line(self) -> str:
        """What was found, as a row of a table."""
        low, high, confidence = median_interval(self.ratios)
        counts = self.counts
        return (
            f"| {self._clients} | {self._kind} | {statistics.median(self.ratios):.2f} | {low:.2f} to {high:.2f} "
            f"({100 * confidence:.0f} %) | {counts['accepted']} of {counts['drafted']} in {counts['tokens']} |"
        )


@contextmanager
def reading(engine: Engine, n_tokens: int = 2000) -> Iterator[None]:
    """Meanwhile another caller has new prompts of so many tokens read, one after the other."""
    ended = Event()
    page = engine.tokenize((ROOT / "docs/performance-history.md").read_text(encoding="utf-8"), add_special=False)

    def ask() -> None:
        for begin in itertools.cycle(range(0, len(page) - n_tokens, 7)):
            if ended.is_set():
                return
            engine.generate(page[begin : begin + n_tokens], max_tokens=1, draft="off", cache=False)

    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(ask)
        try:
            yield
        finally:
            ended.set()
            asking.result()


def compare_ways(
    model: Path, kinds: Sequence[str], clients: int, rounds: int, drafting: Drafting, *, small: Path | None = None,
    beside: bool = False, notes: Path | None = None,
) -> None:  # fmt: skip
    """Measure and print a table."""
    with (
        Engine(model, threads=2, parallel=clients + beside, num_ctx=4096, draft=drafting, draft_model=small) as engine,
        reading(engine) if beside else nullcontext(),
    ):
        for kind in kinds:
            bench = Bench(engine, kind, clients, drafting)
            bench.round(0)
            bench.ratios.clear()  # the first one warms up
            bench.counts.clear()
            for number in range(1, rounds + 1):
                bench.round(number)
            if notes is not None:
                bench.note(notes)
            print(bench.line(), flush=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", metavar="[servers] [MODEL]")
    parser.add_argument("--clients", nargs="+", type=int, default=[1, 4])
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--kinds", nargs="+", choices=(*KINDS, "questions"))
    parser.add_argument("--ways", nargs="+", default=[], help="of drafting, for servers: those of draft_servers.WAYS")
    parser.add_argument("--draft", choices=("lookup", "model", "mtp"), default="lookup")
    parser.add_argument("--deeper", type=Path, metavar="FILE", default=Path("deeper.gguf"))
    parser.add_argument("--beside", action="store_true")
    parser.add_argument("--notes", type=Path, metavar="FILE")
    args = parser.parse_args()
    servers = args.what[:1] == ["servers"]
    named = args.what[1:] if servers else args.what
    model = Path(named[0]) if named else real_model()
    if model is None:
        raise SystemExit("SmolLM2 cannot be downloaded: name a model's file")
    small = model if args.draft == "model" else None
    if small is not None:
        model = args.deeper if args.deeper.exists() else Path(write_deeper(small, args.deeper, copies=7, scale=0.004))
    kinds = args.kinds or (KINDS if small is None else ["questions"])
    print("| clients | answers | times as fast | interval | accepted |\n|---:|---|---:|---|---|" if not servers else "")
    for clients in args.clients:
        if servers:
            served = [kind for kind in kinds if kind != "edit"]  # a logits processor writes it
            compare_servers(model, clients, args.rounds, served, args.ways, small)
        else:
            compare_ways(
                model, kinds, clients, args.rounds, args.draft, small=small, beside=args.beside, notes=args.notes
            )


if __name__ == "__main__":
    main()
