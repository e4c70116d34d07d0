"""Drafts without computing: what choosing them otherwise would change, in a time that has no noise.

    python bench/draft_replay.py [MODEL] [--kinds code JSON ...] [--clients 1 4] [--texts FILE] [--knowing]
                                 [--plain 1:6.5 4:11.6] [--drafted 2:7.4 ...]

The answers of `bench/drafts.py` are written once, by MODEL, into --texts. Then the engine gives them again, and plans,
guesses and cuts as ever; but nothing is computed, and a logits processor dictates answers, so rows are drawn one by one
and not by `sample_drafts`; neither takes time here. The clock says what steps take, in milliseconds by their rows,
without drafts and with them; others lie between. So one change of the chooser is compared with another in seconds,
beside other programs. One client's figures have no chance in them, several clients' little: who of them asks next is
the threads' business.

`--knowing`: guesses whose chances are 1 as far as they are right, and 0 behind. No chooser of lengths can do better.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for when this file is run as a program

from bench import drafts
from bench.draft_texts import KINDS, Text
from bench.real_model import real_model
from ollama_engine import ChatResult, Engine
from ollama_engine.config import Drafting
from ollama_engine.input import FloatArray
from ollama_engine.runner.execute.executor import Executor
from ollama_engine.runner.observe.monitor import Monitor
from ollama_engine.runner.schedule.steering import Draft
from ollama_engine.runner.speculative.lookup import LookupDrafter

__all__ = ["Replay", "Replayed", "replaying"]

BUILDING = 0.0054
"""Seconds that a step takes longer whose graph is built, on Zen 4."""
PLAIN = ("1:6.5", "2:8.0", "3:10.0", "4:11.6")
DRAFTED = ("2:7.4", "3:9.2", "4:10.1", "5:9.8", "6:11.0", "8:13.8", "10:13.8", "12:15.1", "16:18.2", "32:36.4")


class Replayed:
    """An engine's executor and its clock: steps take what `plain` and `drafted` say, by rows, and compute nothing."""

    def __init__(self, plain: Mapping[int, float], drafted: Mapping[int, float]) -> None:
        self.now = 0.0
        self.known: dict[str, list[int]] = {}
        """Answers by their kind and number."""
        self._plain, self._drafted = ((sorted(curve), [curve[n] for n in sorted(curve)]) for curve in (plain, drafted))
        self._before = 0

    def clock(self) -> float:
        return self.now

    @contextlib.contextmanager
    def results(self, executor: Executor) -> Iterator[FloatArray]:
        """Logits of the step in flight, all alike: answers are dictated."""
        assert executor._in_flight is not None
        (batch, graph, _), executor._in_flight = executor._in_flight, None
        rows = len(batch)
        self.now += float(np.interp(rows, *(self._plain if rows == len({*batch.sequences}) else self._drafted)))
        if executor.counts.built > self._before:
            self.now += BUILDING
        self._before = executor.counts.built
        executor._read_graph = graph
        yield np.zeros((len(batch.outputs), executor._model.n_vocab), np.float32)
        executor._read_graph = None

    def knowing(self, drafter: LookupDrafter, trail: Any, most: int) -> Draft:
        """What lookup guesses, with the chances of one who knows the answers."""
        tokens, index = trail.guesses(most), drafter._index
        text = index.part(0, len(index))
        right = 0
        for answer in self.known.values():
            for n in range(min(len(answer), len(text)), 0, -1):
                if text[-n:] == answer[:n]:
                    coming = answer[n : n + len(tokens)]
                    same = next((i for i, (a, b) in enumerate(zip(tokens, coming, strict=False)) if a != b), None)
                    right = max(right, len(coming) if same is None else same)
                    break
        return Draft(tuple(tokens[:right]), (1.0,) * right)


class Replay(drafts.Bench):
    """`Bench` in the time of `Replayed`. It writes answers that are not known yet."""

    def __init__(
        self, engine: Engine, kind: str, clients: int, replayed: Replayed, known: dict[str, list[int]]
    ) -> None:  # fmt: skip
        super().__init__(engine, kind, clients, "lookup")
        for i, text in enumerate(self._texts):
            name = f"{kind} {i}"
            if text.answer is None and name not in known:
                known[name] = list(super()._answer(text, "off", "", drafts.N_ANSWER).tokens)
            elif name not in known:
                known[name] = engine.tokenize(text.answer or "", add_special=False)[: drafts.N_ANSWER]
        self._known = known
        replayed.known = {name: tokens for name, tokens in known.items() if name.startswith(f"{kind} ")}

    def _answer(self, text: Text, draft: Drafting, salt: str, most: int) -> ChatResult[Any]:
        tokens = self._known[f"{self._kind} {self._texts.index(text)}"]
        return super()._answer(replace(text, answer=tokens), draft, salt, min(most, len(tokens)))


def _method(function: Callable[..., Any]) -> Callable[..., Any]:
    """A method that calls a bound one of another object."""

    def call(*args: Any) -> Any:
        return function(*args)

    return call


@contextlib.contextmanager
def replaying(replayed: Replayed, *, knowing: bool = False) -> Iterator[None]:
    """Meanwhile engines compute nothing."""
    with contextlib.ExitStack() as patches:
        for owner, name, value in (
            (Executor, "_compute", lambda executor, graph: None),
            (Executor, "results", _method(replayed.results)),
            (drafts, "time", SimpleNamespace(perf_counter=replayed.clock)),
        ):
            patches.enter_context(patch.object(owner, name, value))
        if knowing:
            patches.enter_context(patch.object(LookupDrafter, "_draft", _method(replayed.knowing)))
        yield


def parsed(prices: Sequence[str]) -> dict[int, float]:
    """Seconds by rows."""
    pairs = [price.split(":") for price in prices]
    return {int(rows): float(ms) / 1000 for rows, ms in pairs}


def main() -> None:
    """Replay and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", type=Path)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--clients", nargs="+", type=int, default=[1])
    parser.add_argument("--texts", type=Path, default=Path("draft_texts.json"))
    parser.add_argument("--plain", nargs="+", default=PLAIN)
    parser.add_argument("--drafted", nargs="+", default=DRAFTED)
    parser.add_argument("--knowing", action="store_true")
    args = parser.parse_args()
    model = args.model or real_model()
    if model is None:
        raise SystemExit("SmolLM2 cannot be downloaded: name a model's file")
    of_models = json.loads(args.texts.read_text()) if args.texts.exists() else {}
    known = of_models.setdefault(model.name, {})
    replayed = Replayed(parsed(args.plain), parsed(args.drafted))
    monitor = lambda piece: Monitor(piece, replayed.clock)  # noqa: E731
    for clients in args.clients:
        with patch("ollama_engine.engine.Monitor", monitor), Engine(
            model, threads=2, parallel=clients, num_ctx=4096, draft="lookup"
        ) as engine:  # fmt: skip
            for kind in args.kinds:
                replay = Replay(engine, kind, clients, replayed, known)
                args.texts.write_text(json.dumps(of_models))
                with replaying(replayed, knowing=args.knowing):
                    replay.round(1)
                print(replay.line(), flush=True)


if __name__ == "__main__":
    main()
