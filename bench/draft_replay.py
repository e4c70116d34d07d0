"""Drafts without computing: what choosing them otherwise would change, in a time that has no noise.

    python bench/draft_replay.py [MODEL] [--kinds code JSON ...] [--texts FILE] [--prices 6.5 2:7.4 ...] [--knowing]

The answers of `bench/drafts.py` are written once, by MODEL, into --texts. Then the engine gives them again, and plans,
guesses, cuts and samples as ever; but nothing is computed, and its clock says what steps take by --prices: milliseconds
of a step without drafts, then of steps with drafts by their rows; others lie between. So one change of the chooser is
compared with another in seconds, beside other programs, and the difference is no chance.

`--knowing`: guesses whose chances are 1 as far as they are right, and 0 behind. No chooser of lengths can do better.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Callable, Iterator, Sequence
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

BUILDING = 0.0054
"""Seconds that a step takes longer whose graph is built, on Zen 4."""
ZEN4 = ("6.5", "2:7.4", "3:9.2", "4:10.1", "5:9.8", "6:11.0", "8:13.8", "10:13.8", "12:15.1", "16:18.2", "32:36.4")


class Replayed:
    """An engine's executor and its clock: answers that are known, in the time that steps would take."""

    def __init__(self, prices: dict[int, float]) -> None:
        self.now = 0.0
        self.answer: tuple[int, list[int]] = (0, [])
        """Tokens of the prompt, and the answer."""
        self._rows = sorted(prices)
        self._seconds = [prices[rows] for rows in self._rows]
        self._before = 0

    def clock(self) -> float:
        return self.now

    def token_behind(self, position: int) -> int:
        """What the answer has behind a position; 0 where it does not go on."""
        begin, tokens = self.answer
        at = position + 1 - begin
        return tokens[at] if 0 <= at < len(tokens) else 0

    @contextlib.contextmanager
    def results(self, executor: Executor) -> Iterator[FloatArray]:
        """Logits of the step in flight, of which one in each row is far above the others."""
        assert executor._in_flight is not None
        (batch, graph, _), executor._in_flight = executor._in_flight, None
        rows = len(batch)
        self.now += float(np.interp(rows, self._rows, self._seconds))
        if executor.counts.built > self._before:
            self.now += BUILDING
        self._before = executor.counts.built
        positions = batch.positions[batch.outputs]
        logits = np.zeros((len(positions), executor._model.n_vocab), np.float32)
        logits[np.arange(len(positions)), [self.token_behind(int(position)) for position in positions]] = 1e4
        executor._read_graph = graph
        yield logits
        executor._read_graph = None

    def knowing(self, drafter: LookupDrafter, trail: Any, most: int) -> Draft:
        """What lookup guesses, with the chances of one who knows the answer."""
        tokens = trail.guesses(most)
        position = len(drafter._index) - 1
        right = next((i for i, each in enumerate(tokens) if each != self.token_behind(position + i)), len(tokens))
        return Draft(tuple(tokens[:right]), (1.0,) * right)


class Replay(drafts.Bench):
    """`Bench` in the time of `Replayed`. It writes answers that are not known yet."""

    def __init__(
        self, engine: Engine, kind: str, drafting: Drafting, replayed: Replayed, known: dict[str, Any]
    ) -> None:
        super().__init__(engine, kind, 1, drafting)
        self._replayed = replayed
        self._known = known

    def write(self) -> None:
        """Have the model write the answers."""
        for i, text in enumerate(self._texts):
            if f"{self._kind} {i}" not in self._known:
                answer = self._answer(text, "off", "", drafts.N_ANSWER)
                self._known[f"{self._kind} {i}"] = (answer.usage.prompt_tokens, list(answer.tokens))

    def _answer(self, text: Text, draft: Drafting, salt: str, most: int) -> ChatResult[Any]:
        begin, tokens = self._known.get(f"{self._kind} {self._texts.index(text)}", (0, []))
        self._replayed.answer = (begin, tokens)
        return super()._answer(text, draft, salt, most)


def _method(function: Callable[..., Any]) -> Callable[..., Any]:
    """A method that calls a bound one of another object."""

    def call(*args: Any) -> Any:
        return function(*args)

    return call


@contextlib.contextmanager
def replaying(replayed: Replayed, *, knowing: bool) -> Iterator[None]:
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
    """Seconds by rows. The first one, without rows, is of a step without drafts."""
    pairs = [price.rpartition(":") for price in prices]
    return {int(rows or 1): float(ms) / 1000 for rows, _, ms in pairs}


def main() -> None:
    """Replay and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", type=Path)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--texts", type=Path, default=Path("draft_texts.json"))
    parser.add_argument("--prices", nargs="+", default=ZEN4)
    parser.add_argument("--knowing", action="store_true")
    args = parser.parse_args()
    model = args.model or real_model()
    if model is None:
        raise SystemExit("SmolLM2 cannot be downloaded: name a model's file")
    of_models = json.loads(args.texts.read_text()) if args.texts.exists() else {}
    known = of_models.setdefault(model.name, {})
    replayed = Replayed(parsed(args.prices))
    monitor = lambda piece: Monitor(piece, replayed.clock)  # noqa: E731
    with patch("ollama_engine.engine.Monitor", monitor), Engine(
        model, threads=2, parallel=1, num_ctx=4096, draft="lookup"
    ) as engine:  # fmt: skip
        for kind in args.kinds:
            replay = Replay(engine, kind, "lookup", replayed, known)
            replay.write()
            args.texts.write_text(json.dumps(of_models))
            with replaying(replayed, knowing=args.knowing):
                replay.round(1)
            print(replay.line(), flush=True)


if __name__ == "__main__":
    main()
