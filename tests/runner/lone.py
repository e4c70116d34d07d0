"""The lone run: greedy answers computed alone, by the executor only, to hold against what requests get together.

Nothing of the runner's core, scheduler, histories or spaces takes part: one sequence, whole prompts, token by token.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ollama_engine.input import Batch
from ollama_engine.runner.load.loading import Loaded
from ollama_engine.runner.schedule.overflow import plan_shift


@dataclass(frozen=True)
class Pick:
    """One greedy choice."""

    token: int
    second: int
    distance: float
    """Between the best two logits, in standard deviations of the row."""

    def allows(self, token: int, tie: float) -> bool:
        """Whether another way to compute the same, which rounds differently, may choose this token."""
        return token == self.token or (token == self.second and self.distance < tie)


@dataclass(frozen=True)
class Task:
    """A prompt, and the context that it is continued in; `keep` None: no shift."""

    prompt: tuple[int, ...]
    num_ctx: int
    keep: int | None = None


class Lone:
    """Answers of one model. What was computed once is remembered."""

    def __init__(self, parts: Loaded) -> None:
        self._parts = parts
        self._n_vocab = min(parts.model.n_vocab, parts.tokenizer.n_vocab)
        self._known: dict[Task, list[Pick]] = {}
        self._scores: dict[tuple[int, ...], np.ndarray] = {}

    def picks(self, task: Task, n: int) -> list[Pick]:
        """The first `n` choices after the prompt, or as many as the context holds; end tokens end nothing here."""
        if task.keep is None:
            n = min(n, max(1, task.num_ctx - len(task.prompt)))
        known = self._known.get(task, [])
        if len(known) < n:
            known = self._known[task] = self._answer(task, max(n, 2 * len(known)))
        return known[:n]

    def scores(self, prompt: tuple[int, ...]) -> np.ndarray:
        """Logits of every token, [n, n_vocab]."""
        if prompt not in self._scores:
            self._parts.cache.remove(0)
            rows = [self._run([token], at)[0].copy() for at, token in enumerate(prompt)]
            self._scores[prompt] = np.array(rows)
        return self._scores[prompt]

    def _answer(self, task: Task, n: int) -> list[Pick]:
        cache = self._parts.cache
        cache.remove(0)
        tokens = list(task.prompt)
        row = self._prompt(tokens)
        picks = [self._pick(row)]
        done = len(tokens)
        while len(picks) < n:
            if done >= task.num_ctx:
                if task.keep is None:
                    break
                shift = plan_shift(done, task.keep, task.num_ctx)
                cache.shiftable.shift(0, shift.keep, shift.discard)
                done -= shift.discard
                assert cache.can_resume(0, done), "the lone run forgets nothing"
            row = self._run([picks[-1].token], done)[0]
            done += 1
            picks.append(self._pick(row))
        return picks

    def _prompt(self, tokens: list[int]) -> np.ndarray:
        size = self._parts.executor.batch_size
        for begin in range(0, len(tokens), size):
            rows = self._run(tokens[begin : begin + size], begin)
        row: np.ndarray = rows[0]
        return row

    def _run(self, tokens: list[int], begin: int) -> np.ndarray:
        rows: np.ndarray = self._parts.executor.run(Batch.of(tokens, begin))
        return rows

    def _pick(self, row: np.ndarray) -> Pick:
        row = row[: self._n_vocab]
        best = int(row.argmax())
        others = row.copy()
        others[best] = -np.inf
        second = int(others.argmax())
        return Pick(best, second, float((row[best] - row[second]) / row.std()))
