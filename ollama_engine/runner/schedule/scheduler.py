"""The scheduler: which inputs of which sequences are computed in the next step. Pure: numbers in, a plan out.

Room (the batch's tokens and its rows of logits) is given in turn. Sequences stand in a line; who is served goes to
its end, newcomers join there, and who did not fit stays in front.
- Decoding sequences come first with one token each; prompts share what is left, the first in line as much of it as it
  can use; drafts get what prompts leave. So a step is never longer than `batch_size` tokens, however
  long the prompts are, and `prompt_tokens` bounds it further while an answer waits for its next token.
- A prompt at the front of the line whose next group did not fit beside the decoding sequences is owed: the next step
  sets that much aside before it serves them.
- A group larger than `batch_size` gets a batch to itself, which is the only case of a larger batch. With `groups_apart`
  no step has two groups.
- Higher priority is served first, but at least every ninth step goes by the line alone. So with N sequences, each is
  served at least once in 10 * (N + 1) steps, whatever the others' priorities, as long as cells suffice.

Cells are given by seniority, higher priority first and then the older, because they come back only when a sequence
ends: taking turns would have all of them wait for each other. Decoding sequences come before prompts, and a prompt
takes no cell that a senior one still needs. What a plan lacked is in it (`short`, `starved`): the loop evicts finished
histories or preempts `choose_victim`, and plans again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ollama_engine.runner.schedule.inputs import Group, ceil_cut, floor_cut

__all__ = ["Candidate", "Limits", "Plan", "Scheduled", "SchedulerState", "choose_victim", "plan"]

FAIR_EVERY = 8
"""Of as many steps, one leaves priorities aside."""


class Candidate(NamedTuple):
    """What the scheduler must know of one sequence."""

    key: int
    """Names the sequence; keys grow with arrival, and a preempted sequence keeps its own."""
    begin: int
    end: int
    """Inputs [begin, end) are known but not computed; at least one."""
    decoding: bool = False
    """Whether these are the token sampled last and its draft: any number of them may be served, from the first on."""
    rows_from: int | None = None
    """Of a prompt, the first input whose logits are wanted, and those of all behind it; None: the last one's only."""
    priority: int = 0
    groups: Sequence[Group] = ()
    """Groups among its inputs, counted as `begin` and `end` are."""

    def prompt_rows(self, n: int) -> int:
        """How many rows of logits the first `n` inputs of a prompt give; they are the last ones of these."""
        return max(0, self.begin + n - self._first_row)

    def prompt_tokens(self, rows: int) -> int:
        """How many inputs of a prompt can be computed with as many rows of logits, at most."""
        return min(self._first_row + rows, self.end) - self.begin

    @property
    def _first_row(self) -> int:
        return max(self.begin, self.end - 1 if self.rows_from is None else self.rows_from)


class Limits(NamedTuple):
    """What one step may take."""

    batch_size: int
    """Tokens."""
    max_outputs: int
    """Rows of logits."""
    free_cells: int
    """Cells that a token can be put in."""
    prompt_tokens: int | None = None
    """Tokens of prompts in a step that also decodes, or the first group when that is larger; None: no such limit."""
    headroom: int = 0
    """Cells that prompts leave free while something decodes, so that it can go on for a while."""
    groups_apart: bool = False
    """Whether a step may have one group only."""


class Scheduled(NamedTuple):
    """The next `n` inputs of one sequence."""

    key: int
    n: int
    outputs: int
    """Rows with logits, counted from the piece's end: 1 at a prompt's end, 0 before; more where more are wanted."""


class SchedulerState(NamedTuple):
    """Who is next: what one plan hands to the next."""

    line: tuple[int, ...] = ()
    """Keys, the one that waits longest first."""
    owed: int | None = None
    """The prompt that did not fit though it was first."""
    since_fair: int = 0
    """Steps since priorities were last left aside."""


class Plan(NamedTuple):
    """What one step computes, and the scheduler's state after it."""

    scheduled: tuple[Scheduled, ...]
    """Decoding sequences first, then prompts; each key once."""
    state: SchedulerState
    starved: tuple[int, ...] = ()
    """Decoding sequences that had a place in the batch but no cell."""
    short: int = 0
    """Cells that were missing, at least: with more of them this step had more tokens, or the next one could serve who
    is first. 0 when cells limit nothing."""


_START = SchedulerState()


def plan(candidates: Iterable[Candidate], limits: Limits, state: SchedulerState = _START) -> Plan:
    """The next step. The order of `candidates` does not matter.

    Raises ValueError for limits out of range, candidates without pending inputs, two of one key, and a group that no
    step can hold.
    """
    _check(limits)
    line = _line(candidates, state.line)
    ranked = any(candidate.priority != line[0].priority for candidate in line)
    fair = not ranked or (state.since_fair >= FAIR_EVERY - 1 and state.owed is None)
    order = line if fair else sorted(line, key=lambda candidate: -candidate.priority)
    decoding = [candidate for candidate in order if candidate.decoding]
    prompts = [candidate for candidate in order if not candidate.decoding]
    if state.owed is not None:
        prompts.sort(key=lambda candidate: candidate.key != state.owed)
    step = _PlanBuilder(limits, limits.batch_size, limits.max_outputs, limits.free_cells)
    step.decode(decoding, _set_aside(prompts, len(decoding), limits, state))
    owed = step.prefill(prompts) if prompts else None
    if any(candidate.end - candidate.begin > 1 for candidate in decoding):
        step.add_drafts(decoding)
    served = {piece.key for piece in step.scheduled}
    waiting = [candidate.key for candidate in line if candidate.key not in served]
    after = (*waiting, *(candidate.key for candidate in line if candidate.key in served))
    return Plan(
        tuple(step.scheduled),
        SchedulerState(after, owed, 0 if fair else state.since_fair + 1),
        tuple(step.starved),
        step.short,
    )


def choose_victim(candidates: Iterable[Candidate], freed: Mapping[int, int]) -> int | None:
    """The sequence to preempt when cells are short: the youngest of the lowest priority that frees any.

    `freed` says how many cells each key would give back. The most senior sequence is never chosen, so that it comes to
    an end; None when nothing but that would help.
    """
    juniors = sorted(candidates, key=_seniority)[1:]
    return next((candidate.key for candidate in reversed(juniors) if freed.get(candidate.key, 0) > 0), None)


def _seniority(candidate: Candidate) -> tuple[int, int]:
    return (-candidate.priority, candidate.key)


def _check(limits: Limits) -> None:
    prompt_tokens = 1 if limits.prompt_tokens is None else limits.prompt_tokens
    if min(limits.batch_size, limits.max_outputs, prompt_tokens) < 1 or min(limits.free_cells, limits.headroom) < 0:
        raise ValueError(f"tokens and rows are at least 1, cells and headroom at least 0; got {limits}")


def _line(candidates: Iterable[Candidate], known: Sequence[int]) -> list[Candidate]:
    """Candidates in the order of the line; newcomers stand at its end, the oldest first."""
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


def _least(candidate: Candidate, limits: Limits) -> _Demand:
    """What the smallest next piece of a prompt takes."""
    n = ceil_cut(candidate.begin + 1, candidate.groups) - candidate.begin
    rows = candidate.prompt_rows(n)
    if candidate.begin + n > candidate.end or rows > limits.max_outputs:
        raise ValueError(
            f"the next group of {candidate} has {n} inputs and wants {rows} rows of logits; "
            f"a step computes whole groups and has {limits.max_outputs} rows"
        )
    return _Demand(n, rows)


def _set_aside(prompts: Sequence[Candidate], n_decoding: int, limits: Limits, state: SchedulerState) -> _Demand:
    """What decoding sequences must leave to the prompt that is owed, if there are cells for it beside them."""
    if not prompts or prompts[0].key != state.owed:
        return _Demand()
    least = _least(prompts[0], limits)
    spare = limits.free_cells - n_decoding - (limits.headroom if n_decoding else 0)
    return least if least.tokens <= _shares(prompts, spare)[state.owed] else _Demand()


def _shares(prompts: Sequence[Candidate], spare: int) -> dict[int, int]:
    """How many of the spare cells each prompt may take: all it needs, after its seniors."""
    shares = {}
    for candidate in sorted(prompts, key=_seniority):
        shares[candidate.key] = max(0, min(spare, candidate.end - candidate.begin))
        spare -= candidate.end - candidate.begin
    return shares


@dataclass(slots=True)
class _PlanBuilder:
    """A step being filled. The counts are what is left."""

    limits: Limits
    room: int
    rows: int
    cells: int
    scheduled: list[Scheduled] = field(default_factory=list)
    starved: list[int] = field(default_factory=list)
    short: int = 0
    has_group: bool = False

    def decode(self, decoding: Sequence[Candidate], aside: _Demand) -> None:
        """One token each, as far as places go; where cells are fewer, to the most senior of those."""
        places = max(0, min(self.room - aside.tokens, self.rows - aside.rows))
        seated = decoding[:places]
        if len(seated) > self.cells:
            chosen = {candidate.key for candidate in sorted(seated, key=_seniority)[: self.cells]}
            self.starved = [candidate.key for candidate in seated if candidate.key not in chosen]
            self.short = len(self.starved)
            seated = [candidate for candidate in seated if candidate.key in chosen]
        self.scheduled = [Scheduled(candidate.key, 1, 1) for candidate in seated]
        self.room -= len(seated)
        self.rows -= len(seated)
        # Those without a place will want a cell in the next step.
        self.cells -= len(decoding) + (self.limits.headroom if decoding else 0)

    def add_drafts(self, decoding: Sequence[Candidate]) -> None:
        """The drafts of those that decode, as far as prompts leave room, rows and cells.

        Cells that are missing are `short`: a draft is worth more than a finished sequence that may be reused.
        """
        drafts = {candidate.key: candidate.end - candidate.begin - 1 for candidate in decoding}
        cells = self.cells + self.limits.headroom
        for i, run in enumerate(self.scheduled):
            wanted = max(0, min(drafts.get(run.key, 0), self.room, self.rows))
            more = min(wanted, max(0, cells))
            self.scheduled[i] = run._replace(n=run.n + more, outputs=run.outputs + more)
            self.short += wanted - more
            self.room -= more
            self.rows -= more
            cells -= more

    def prefill(self, prompts: Sequence[Candidate]) -> int | None:
        """Fill what is left; returns the first prompt's key when there was no room for it."""
        shares = _shares(prompts, self.cells)
        if self.scheduled and self.limits.prompt_tokens is not None:
            usual = min(self.room, self.limits.prompt_tokens)
        else:
            usual = self.room
        owed = None
        n_prefilled = 0
        for candidate in prompts:
            least = _least(candidate, self.limits)
            n = self._fitting(candidate, least, usual - n_prefilled, first=n_prefilled == 0)
            n = min(n, self._before_next_group(candidate))
            if n == 0 and candidate is prompts[0]:
                missing = max(0, least.tokens - shares[candidate.key])
                owed = None if missing else candidate.key
                self.short += missing
            allowed = n if n <= shares[candidate.key] else _cut(candidate, shares[candidate.key])
            self.short += max(0, n - shares[candidate.key])
            if allowed == 0:
                continue
            outputs = candidate.prompt_rows(allowed)
            self.scheduled.append(Scheduled(candidate.key, allowed, outputs))
            self.has_group |= any(candidate.begin <= first < candidate.begin + allowed for first, _ in candidate.groups)
            n_prefilled += allowed
            self.room -= allowed
            self.cells -= allowed
            self.rows -= outputs
        return owed

    def _before_next_group(self, candidate: Candidate) -> int:
        """How many inputs lie before the first group that must wait for another step."""
        if not self.limits.groups_apart:
            return candidate.end - candidate.begin
        ahead = [begin for begin, _ in candidate.groups if begin >= candidate.begin]
        must_wait = ahead[0 if self.has_group else 1 :]
        return (must_wait[0] if must_wait else candidate.end) - candidate.begin

    def _fitting(self, candidate: Candidate, least: _Demand, usual: int, *, first: bool) -> int:
        """How many inputs the batch has room for, 0 when not even the next group fits."""
        if least.tokens > usual and first:
            alone = not self.scheduled
            fits = (alone or least.tokens <= self.room) and least.rows <= self.rows
            return least.tokens if fits else 0
        return _cut(candidate, min(usual, candidate.prompt_tokens(self.rows)))


def _cut(candidate: Candidate, limit: int) -> int:
    """The most inputs up to `limit` that split no group."""
    if limit >= candidate.end - candidate.begin:
        return candidate.end - candidate.begin
    return max(0, floor_cut(candidate.begin + max(0, limit), candidate.groups) - candidate.begin)
