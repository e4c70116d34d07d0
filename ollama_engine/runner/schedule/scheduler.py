"""The scheduler: chooses the inputs that the next step computes. Pure: numbers in, a plan out.

Room in a batch (tokens and rows of logits) is shared in turn. Sequences stand in a line: one that is served goes to the
end, new ones join at the end, and one that did not fit stays in front.
- Decoding sequences come first, with one token each. Prompts share the rest, those with the fewest inputs left first:
  so one is finished before another is begun, and callers need not all wait for the end of all prompts. Drafts get what
  prompts leave. A step never exceeds `batch_size` tokens, however long prompts are, and `prompt_tokens` bounds it
  further while an answer waits for its next token.
- Where the next group of the first prompt in line does not fit beside decoding sequences, the next step owes it room.
- A group larger than `batch_size` is a batch of its own; no other batch exceeds `batch_size`. No step has more
  groups than `BatchLimits.groups`.
- Higher priority is served first, but at least every ninth step follows the line alone. So with N sequences, each is
  served at least once in 10 * (N + 1) steps, whatever priorities and lengths the others have, if there are cells.

Cells are given by seniority: higher priority first, then age. Not in turn, because cells come back only when a sequence
ends, so all sequences would end up waiting for each other. Decoding sequences come before prompts, and a prompt takes
no cell that a senior one still needs. The plan says what it lacked (`short`, `starved`); the core then evicts cached
sequences, or preempts `choose_victim`, and plans again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ollama_engine.runner.request.inputs import Group, ceil_cut, floor_cut

__all__ = ["FAIR_EVERY", "BatchLimits", "Candidate", "Scheduled", "SchedulerState", "StepPlan", "choose_victim", "plan"]

FAIR_EVERY = 9
"""One in this many steps, and one in this many gaps between steps, ignores priorities: no request starves.

Odd: of two requests that take turns, an even one would find the same one each time.
"""


class Candidate(NamedTuple):
    """The scheduler's view of one sequence."""

    key: int
    """Identifies the sequence. Keys increase with arrival; a preempted sequence keeps its key."""
    begin: int
    end: int
    """Inputs [begin, end) are known but not computed; at least one."""
    decoding: bool = False
    """Whether these are the last known tokens and a draft; any number from the first on may be served."""
    rows_from: int | None = None
    """Logits are wanted of this input of a prompt and of all behind it; None: of the last one alone."""
    priority: int = 0
    groups: Sequence[Group] = ()
    """Groups among its inputs, as indices like `begin` and `end`."""
    certain: int = 1
    """Number of a decoding sequence's inputs that are no guesses; those behind the last of them are its draft."""

    @property
    def without_rows(self) -> int:
        """How many of these come before the first whose logits are wanted."""
        if self.decoding:
            return self.certain - 1
        return max(0, (self.end - 1 if self.rows_from is None else self.rows_from) - self.begin)

    def outputs(self, n: int) -> int:
        """Rows of logits that the first `n` of these ask for: the last ones."""
        return max(0, n - self.without_rows)


class BatchLimits(NamedTuple):
    """Limits of one step: tokens, rows of logits, and cells."""

    batch_size: int
    """Most tokens."""
    max_outputs: int
    """Most rows of logits."""
    free_cells: int
    """Free cells, one per token."""
    prompt_tokens: int | None = None
    """Most prompt tokens in a step that also decodes, except for a larger first group; None: no such limit."""
    headroom: int = 0
    """Cells that prompts leave free for decoding sequences, so that these can continue for a while."""
    groups: int | None = None
    """Most groups; None: as many as fit."""


class Scheduled(NamedTuple):
    """The next `n` inputs of one sequence."""

    key: int
    n: int
    outputs: int
    """Number of rows with logits, the last ones: 0 within a prompt, 1 at its end; more where more are wanted."""


class SchedulerState(NamedTuple):
    """The line of sequences: what one plan passes to the next."""

    line: tuple[int, ...] = ()
    """Keys in the order of the line: the longest waiting first."""
    owed: int | None = None
    """Key of the prompt that was first and did not fit."""
    since_fair: int = 0
    """Steps since the last one that ignored priorities."""


class StepPlan(NamedTuple):
    """The inputs that one step computes, and the scheduler's state after it."""

    scheduled: tuple[Scheduled, ...]
    """Decoding sequences first, then prompts; each key once."""
    state: SchedulerState
    starved: tuple[int, ...] = ()
    """Decoding sequences that had room in the batch but no cell."""
    short: int = 0
    """A lower bound on missing cells: with them this step would have more tokens, or the next step could serve the
    first in line. 0 when cells limit nothing."""


_START = SchedulerState()


def plan(candidates: Iterable[Candidate], limits: BatchLimits, state: SchedulerState = _START) -> StepPlan:
    """The next step. The order of `candidates` does not matter.

    Raises ValueError for limits out of range, a candidate without pending inputs, a repeated key, and a group that no
    step can hold.
    """
    _check(limits)
    line = _line(candidates, state.line)
    n_prompts = sum(not candidate.decoding for candidate in line)
    ranked = n_prompts > 1 or any(candidate.priority != line[0].priority for candidate in line)
    fair = not ranked or (state.since_fair >= FAIR_EVERY - 1 and state.owed is None)
    order = line if fair else sorted(line, key=lambda candidate: -candidate.priority)
    decoding = [candidate for candidate in order if candidate.decoding]
    prompts = [candidate for candidate in order if not candidate.decoding]
    front = next((candidate for candidate in prompts if candidate.key == state.owed), prompts[0] if prompts else None)
    if not fair:
        prompts.sort(key=lambda candidate: (-candidate.priority, candidate.end - candidate.begin))
    if state.owed is not None:
        prompts.sort(key=lambda candidate: candidate.key != state.owed)
    step = _PlanBuilder(limits, limits.batch_size, limits.max_outputs, limits.free_cells)
    step.decode(decoding, _set_aside(prompts, len(decoding), limits, state))
    owed = step.prefill(prompts, front) if front else None
    if any(candidate.end - candidate.begin > 1 for candidate in decoding):
        step.add_drafts(decoding)
    served = {piece.key for piece in step.scheduled}
    waiting = [candidate.key for candidate in line if candidate.key not in served]
    after = (*waiting, *(candidate.key for candidate in line if candidate.key in served))
    return StepPlan(
        tuple(step.scheduled),
        SchedulerState(after, owed, 0 if fair else state.since_fair + 1),
        tuple(step.starved),
        step.short,
    )


def choose_victim(candidates: Iterable[Candidate], freed: Mapping[int, int]) -> int | None:
    """The sequence to preempt when cells are short: the youngest with the lowest priority that frees any cell.

    `freed`: the number of cells that each key would free. The most senior sequence is never chosen, so that it can end;
    None when only that one would help.
    """
    juniors = sorted(candidates, key=_seniority)[1:]
    return next((candidate.key for candidate in reversed(juniors) if freed.get(candidate.key, 0) > 0), None)


def _seniority(candidate: Candidate) -> tuple[int, int]:
    return (-candidate.priority, candidate.key)


def _check(limits: BatchLimits) -> None:
    prompt_tokens = 1 if limits.prompt_tokens is None else limits.prompt_tokens
    if min(limits.batch_size, limits.max_outputs, prompt_tokens) < 1 or min(limits.free_cells, limits.headroom) < 0:
        raise ValueError(f"tokens and rows are at least 1, cells and headroom at least 0; got {limits}")


def _line(candidates: Iterable[Candidate], known: Sequence[int]) -> list[Candidate]:
    """Candidates in the order of the line; new ones at its end, the oldest first."""
    by_key: dict[int, Candidate] = {}
    for candidate in candidates:
        if candidate.begin >= candidate.end:
            raise ValueError(f"a candidate has pending inputs; got {candidate}")
        if candidate.key in by_key:
            raise ValueError(f"each candidate has its own key, two have {candidate.key}")
        by_key[candidate.key] = candidate
    line = [by_key.pop(key) for key in known if key in by_key]
    return line + [by_key[key] for key in sorted(by_key)]


class _Demand(NamedTuple):
    tokens: int = 0
    rows: int = 0


def _least(candidate: Candidate, limits: BatchLimits) -> _Demand:
    """Tokens and rows of a prompt's smallest next part: one input, or one group."""
    n = ceil_cut(candidate.begin + 1, candidate.groups) - candidate.begin
    rows = candidate.outputs(n)
    if candidate.begin + n > candidate.end or rows > limits.max_outputs:
        raise ValueError(
            f"the next group of {candidate} has {n} inputs and wants {rows} rows of logits; "
            f"a step computes whole groups and has {limits.max_outputs} rows"
        )
    return _Demand(n, rows)


def _set_aside(prompts: Sequence[Candidate], n_decoding: int, limits: BatchLimits, state: SchedulerState) -> _Demand:
    """Room that decoding sequences must leave for the owed prompt, if there are also cells for it."""
    if not prompts or prompts[0].key != state.owed:
        return _Demand()
    least = _least(prompts[0], limits)
    spare = limits.free_cells - n_decoding - (limits.headroom if n_decoding else 0)
    return least if least.tokens <= _shares(prompts, spare)[state.owed] else _Demand()


def _shares(prompts: Sequence[Candidate], spare: int) -> dict[int, int]:
    """The share of each prompt in the spare cells: all it needs, after those senior to it."""
    shares = {}
    for candidate in sorted(prompts, key=_seniority):
        shares[candidate.key] = max(0, min(spare, candidate.end - candidate.begin))
        spare -= candidate.end - candidate.begin
    return shares


@dataclass(slots=True)
class _PlanBuilder:
    """A step that is being filled. Its counts are the room that is left."""

    limits: BatchLimits
    room: int
    rows: int
    cells: int
    scheduled: list[Scheduled] = field(default_factory=list)
    starved: list[int] = field(default_factory=list)
    short: int = 0
    n_groups: int = 0

    def decode(self, decoding: Sequence[Candidate], aside: _Demand) -> None:
        """Schedule one token each while there is room in the batch. Where cells are fewer, the most senior get them."""
        n = max(0, min(self.room - aside.tokens, self.rows - aside.rows))
        served = decoding[:n]
        if len(served) > self.cells:
            chosen = {candidate.key for candidate in sorted(served, key=_seniority)[: self.cells]}
            self.starved = [candidate.key for candidate in served if candidate.key not in chosen]
            self.short = len(self.starved)
            served = [candidate for candidate in served if candidate.key in chosen]
        self.scheduled = [Scheduled(candidate.key, 1, candidate.outputs(1)) for candidate in served]
        self.room -= len(served)
        self.rows -= len(served)
        # Those without room in this batch need a cell in the next step.
        self.cells -= len(decoding) + (self.limits.headroom if decoding else 0)

    def add_drafts(self, decoding: Sequence[Candidate]) -> None:
        """Adds the drafts of decoding sequences, as far as prompts leave room, rows and cells.

        Missing cells count as `short`: a draft is worth more than a finished sequence that might be reused.
        """
        by_key = {candidate.key: candidate for candidate in decoding}
        cells = self.cells + self.limits.headroom
        for i, run in enumerate(self.scheduled):
            candidate = by_key.get(run.key)
            if candidate is None:
                continue
            # A row of logits was set aside for its first token; those in between ask for none.
            most = min(self.room, self.rows + candidate.certain - 1)
            drafted = max(0, min(candidate.end - candidate.begin - 1, most))
            more = min(drafted, max(0, cells))
            outputs = candidate.outputs(1 + more)
            self.scheduled[i] = Scheduled(run.key, 1 + more, outputs)
            self.short += drafted - more
            self.room -= more
            self.rows -= max(0, outputs - 1)
            cells -= more

    def prefill(self, prompts: Sequence[Candidate], front: Candidate) -> int | None:
        """Fill the rest with prompts. Returns the key of `front`, the first in line, if the whole rest is too small."""
        shares = _shares(prompts, self.cells)
        if self.scheduled and self.limits.prompt_tokens is not None:
            usual = min(self.room, self.limits.prompt_tokens)
        else:
            usual = self.room
        owed = self._owed(front, shares[front.key], usual)
        n_prefilled = 0
        for candidate in prompts:
            least = _least(candidate, self.limits)
            n = self._fitting(candidate, least, usual - n_prefilled, first=n_prefilled == 0)
            n = min(n, self._before_next_group(candidate))
            allowed = n if n <= shares[candidate.key] else _cut(candidate, shares[candidate.key])
            self.short += max(0, n - shares[candidate.key])
            if allowed == 0:
                continue
            outputs = candidate.outputs(allowed)
            self.scheduled.append(Scheduled(candidate.key, allowed, outputs))
            self.n_groups += sum(0 <= first - candidate.begin < allowed for first, _ in candidate.groups)
            n_prefilled += allowed
            self.room -= allowed
            self.cells -= allowed
            self.rows -= outputs
        return owed

    def _owed(self, front: Candidate, share: int, usual: int) -> int | None:
        """Its key, if only room in the batch is missing for its next part; missing cells count as `short`."""
        least = _least(front, self.limits)
        if self._fitting(front, least, usual, first=True):
            return None
        missing = max(0, least.tokens - share)
        self.short += missing
        return None if missing else front.key

    def _before_next_group(self, candidate: Candidate) -> int:
        """Number of inputs before the first group that must wait for another step."""
        if self.limits.groups is None:
            return candidate.end - candidate.begin
        ahead = [begin for begin, _ in candidate.groups if begin >= candidate.begin]
        must_wait = ahead[self.limits.groups - self.n_groups :]
        return (must_wait[0] if must_wait else candidate.end) - candidate.begin

    def _fitting(self, candidate: Candidate, least: _Demand, usual: int, *, first: bool) -> int:
        """Number of inputs that fit into the batch; 0 when not even the next group fits."""
        if least.tokens > usual and first:
            alone = not self.scheduled
            fits = (alone or least.tokens <= self.room) and least.rows <= self.rows
            return least.tokens if fits else 0
        return _cut(candidate, min(usual, candidate.without_rows + self.rows))


def _cut(candidate: Candidate, limit: int) -> int:
    """The greatest number of inputs up to `limit` that splits no group."""
    if limit >= candidate.end - candidate.begin:
        return candidate.end - candidate.begin
    return max(0, floor_cut(candidate.begin + max(0, limit), candidate.groups) - candidate.begin)
