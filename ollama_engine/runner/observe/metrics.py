"""Metrics: counters and gauges that the engine thread writes and any thread reads. No clock and no effects.

One lock guards all of them: the engine thread holds it for a microsecond per step, a reader while it copies.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, get_args

from ollama_engine.runner.schedule.queued import Kind

__all__ = ["CellCounts", "Histogram", "Metrics", "MetricsSnapshot", "Outcome", "Rate"]

Outcome = Literal["stop", "length", "cancelled", "deadline", "rejected", "error"]
"""How a request ended. A `rejected` request never started; one that missed its `deadline` may have."""

_BOUNDS = tuple(digit * 10.0**power for power in range(-5, 2) for digit in (1, 2, 5))
_BUCKETS = 20


@dataclass(frozen=True, slots=True)
class Histogram:
    """Counts of values between bounds."""

    bounds: tuple[float, ...]
    """Upper bounds, ascending; values above the last one are counted as well."""
    counts: tuple[int, ...]
    """One entry for each bound and one for larger values. Not cumulative."""
    total: float
    """Sum of the values."""
    maximum: float

    @property
    def count(self) -> int:
        return sum(self.counts)

    @property
    def mean(self) -> float:
        """Mean of the values; 0 without values."""
        return self.total / self.count if self.count else 0.0

    def quantile(self, q: float) -> float:
        """An upper bound of the q-quantile, q from 0 to 1; 0 without values."""
        if not 0 <= q <= 1:
            raise ValueError(f"a quantile is 0 to 1, got {q}")
        left = q * self.count
        for bound, count in zip(self.bounds, self.counts, strict=False):
            left -= count
            if left <= 0:
                return min(bound, self.maximum)
        return self.maximum


class CellCounts(NamedTuple):
    """How many cells of the cache are in use; one cell holds one token."""

    used: int = 0
    free: int = 0
    shared: int = 0
    """Used cells that several sequences share."""


@dataclass(frozen=True, slots=True)
class MetricsSnapshot:
    """All metrics at one moment. Counters start at 0 when the engine is opened; times are seconds."""

    # -- tokens --
    prompt_tokens: int = 0
    """Prompt tokens that were computed, including those computed again after a preemption."""
    cached_tokens: int = 0
    """Prompt tokens that were reused from the prefix cache."""
    completion_tokens: int = 0
    drafted_tokens: int = 0
    """Tokens that were guessed and computed beside those of answers."""
    accepted_tokens: int = 0
    """Those of them that were right."""
    prompt_tokens_per_second: float = 0.0
    completion_tokens_per_second: float = 0.0
    """Averages over the last seconds (the window), including pauses."""
    # -- requests of all kinds --
    requests: Mapping[Outcome, int] = field(default_factory=dict)
    """Ended requests by outcome. Without an answer (logits, embeddings, ranking), "stop" means success."""
    requests_by_kind: Mapping[Kind, Mapping[Outcome, int]] = field(default_factory=dict)
    """Ended requests by kind and outcome; ranking counts as "embedding"."""
    queued: int = 0
    running: int = 0
    preemptions: int = 0
    # -- batches of texts --
    embedded_texts: int = 0
    embedded_tokens: int = 0
    embed_batches: int = 0
    embed_seconds: float = 0.0
    """Seconds of computing them; no other step runs meanwhile."""
    # -- images --
    encoded_images: int = 0
    encode_seconds: float = 0.0
    """Seconds of encoding them; no other step runs meanwhile."""
    image_hits: int = 0
    """How often a request needed an image that was encoded already. Images in a cached prefix do not count."""
    image_cache_bytes: int = 0
    """Host memory that embeddings of images take now."""
    # -- memory --
    device_bytes: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Bytes that the engine takes on each device now: {"CPU": {"weights": .., "cache": .., "graph": ..}}. "weights"
    include those in the mapped file. `Engine.devices` tells the free memory there."""
    expert_uses: int = 0
    """How often a layer used an expert, of a mixture with `expert_cache_bytes`; this and the next four count since the
    model was loaded."""
    expert_misses: int = 0
    """Uses of experts that were neither in memory nor being read when they were chosen."""
    experts_read_ahead: int = 0
    """Experts that were read since the layer before had guessed that they would be chosen."""
    experts_used_ahead: int = 0
    """Those of them that were chosen before they made room."""
    expert_bytes_read: int = 0
    sleeps: int = 0
    """How often `Engine.sleep` gave its memory back."""
    wake_seconds: float = 0.0
    """Seconds of taking it again, for which requests waited."""
    # -- cache --
    cells: CellCounts = field(default_factory=CellCounts)
    prefix_store_read_tokens: int = 0
    """Prompt tokens whose keys and values were read from the prefix store."""
    prefix_store_written_tokens: int = 0
    """Tokens whose keys and values were written to it."""
    prefix_store_left_tokens: int = 0
    """Prompt tokens that it has, and that were computed: reading them would have taken longer."""
    evictions: int = 0
    shifts: int = 0
    moved_cells: int = 0
    """Cells that were moved together, for steps that read a run of cells."""
    # -- steps --
    threads: int = 0
    """CPU threads that compute now: `info.threads`, or fewer while the machine is busy with other work."""
    steps: int = 0
    graphs_built: int = 0
    graphs_reused: int = 0
    step_seconds: Histogram = Histogram(_BOUNDS, (0,) * (len(_BOUNDS) + 1), 0.0, 0.0)

    @property
    def graph_reuse_rate(self) -> float:
        """Share of the steps that needed no new graph; 0 before the first."""
        graphs = self.graphs_built + self.graphs_reused
        return self.graphs_reused / graphs if graphs else 0.0


class Rate:
    """A sum over a sliding window, in buckets: it forgets a twentieth of the window at a time."""

    def __init__(self, window: float) -> None:
        if window <= 0:
            raise ValueError(f"the window is longer than 0 seconds, got {window}")
        self._width = window / _BUCKETS
        self._sums = [0] * _BUCKETS
        self._newest: int | None = None
        self._since = 0.0

    def add(self, now: float, n: int) -> None:
        """Count `n` at time `now`; a time before the latest counts as the latest."""
        if self._newest is None:
            self._newest, self._since = int(now // self._width), now
        self._advance(now)
        self._sums[self._newest % _BUCKETS] += n

    def per_second(self, now: float) -> float:
        """Average over the window, or since the first count when that is later."""
        if self._newest is None:
            return 0.0
        self._advance(now)
        # The newest bucket is not full yet, all the others are.
        begin = max(self._since, (self._newest - _BUCKETS + 1) * self._width)
        return sum(self._sums) / max(now - begin, self._width)

    def _advance(self, now: float) -> None:
        assert self._newest is not None
        bucket = int(now // self._width)
        for gone in range(self._newest + 1, min(bucket, self._newest + _BUCKETS) + 1):
            self._sums[gone % _BUCKETS] = 0
        self._newest = max(bucket, self._newest)


class Metrics:
    """Counters of one engine. Every method may be called from any thread. Times are seconds of one clock."""

    def __init__(self, window: float = 10.0) -> None:
        # Reentrant: signal handlers and finalisers may call a method while another one runs in this thread.
        self._lock = threading.RLock()
        # -- counters --
        self._counts = MetricsSnapshot()
        self._requests: dict[Kind, dict[Outcome, int]] = {
            kind: dict.fromkeys(get_args(Outcome), 0) for kind in get_args(Kind)
        }
        self._prompt_tokens = self._completion_tokens = 0
        self._drafted = self._accepted = 0
        self._built = self._reused = 0
        # -- gauges --
        self._queued = self._running = 0
        self._cells = CellCounts()
        self._image_bytes = 0
        self._threads = 0
        # -- times --
        self._step_counts = [0] * (len(_BOUNDS) + 1)
        self._step_total = self._step_maximum = 0.0
        self._prompt_rate, self._completion_rate = Rate(window), Rate(window)

    def step(
        self, now: float, seconds: float, *, prompt_tokens: int, completion_tokens: int, graph_reused: bool,
        drafted_tokens: int = 0, accepted_tokens: int = 0,
    ) -> None:  # fmt: skip
        """A step was computed, taking `seconds` until its results were there at time `now`."""
        with self._lock:
            self._step_counts[bisect_left(_BOUNDS, seconds)] += 1
            self._step_total += seconds
            self._step_maximum = max(self._step_maximum, seconds)
            if prompt_tokens:
                self._prompt_tokens += prompt_tokens
                self._prompt_rate.add(now, prompt_tokens)
            if completion_tokens:
                self._completion_tokens += completion_tokens
                self._completion_rate.add(now, completion_tokens)
            self._drafted += drafted_tokens
            self._accepted += accepted_tokens
            if graph_reused:
                self._reused += 1
            else:
                self._built += 1

    def gauges(self, *, queued: int, running: int, cells: CellCounts, image_bytes: int = 0, threads: int = 0) -> None:
        """Set the gauges: the values of this moment, where counters only grow."""
        with self._lock:
            self._queued, self._running, self._cells = queued, running, cells
            self._image_bytes, self._threads = image_bytes, threads

    def count(self, **added: float) -> None:
        """Add to counters of rare events, by their names."""
        with self._lock:
            changed: dict[str, Any] = {name: getattr(self._counts, name) + n for name, n in added.items()}
            self._counts = replace(self._counts, **changed)

    def embedded(self, seconds: float, *, texts: int, tokens: int) -> None:
        """A batch of texts was computed."""
        with self._lock:
            old = self._counts
            self._counts = replace(
                old,
                embedded_texts=old.embedded_texts + texts,
                embedded_tokens=old.embedded_tokens + tokens,
                embed_batches=old.embed_batches + 1,
                embed_seconds=old.embed_seconds + seconds,
            )

    def encoded(self, seconds: float) -> None:
        """An image was encoded."""
        with self._lock:
            old = self._counts
            self._counts = replace(
                old, encoded_images=old.encoded_images + 1, encode_seconds=old.encode_seconds + seconds
            )

    def ended(self, kind: Kind, outcome: Outcome) -> None:
        """A request of this kind ended. Raises ValueError for an unknown outcome."""
        with self._lock:
            counts = self._requests[kind]
            if outcome not in counts:
                raise ValueError(f"outcomes are {', '.join(counts)}, got {outcome!r}")
            counts[outcome] += 1

    def snapshot(self, now: float) -> MetricsSnapshot:
        """A consistent snapshot as of `now`."""
        with self._lock:
            kinds = self._requests.values()
            return replace(
                self._counts,
                prompt_tokens=self._prompt_tokens,
                completion_tokens=self._completion_tokens,
                drafted_tokens=self._drafted,
                accepted_tokens=self._accepted,
                prompt_tokens_per_second=self._prompt_rate.per_second(now),
                completion_tokens_per_second=self._completion_rate.per_second(now),
                requests={end: sum(counts[end] for counts in kinds) for end in get_args(Outcome)},
                requests_by_kind={kind: dict(counts) for kind, counts in self._requests.items()},
                queued=self._queued,
                running=self._running,
                cells=self._cells,
                image_cache_bytes=self._image_bytes,
                threads=self._threads,
                steps=self._built + self._reused,
                graphs_built=self._built,
                graphs_reused=self._reused,
                step_seconds=Histogram(_BOUNDS, tuple(self._step_counts), self._step_total, self._step_maximum),
            )
