"""Slots of images: drawn cases, and any history of calls against lists."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from ollama_engine.errors import ContextOverflowError
from ollama_engine.kvcache import CacheConfig, CompositeCache, LayerShape, make_cache
from ollama_engine.kvcache.cross_attention import CrossAttentionCache
from ollama_engine.kvcache.images import ImageSlots
from ollama_engine.ml.device.placement import BackendParams
from ollama_engine.ml.graph.backend import Backend
from tests.kvcache.kinds import IMAGE_ROWS, KINDS, Fed, answers, fed, run, shape
from tests.support.suite import scaled

IMAGES = next(kind for kind in KINDS if kind.sees_images)


@contextmanager
def pictures(n_images: int) -> Iterator[Fed]:
    """Full and cross-attention layers with room for so many images."""
    config = CacheConfig(dtype="f32", flash_attention=True, history_padding=4)
    with Backend(BackendParams(threads=1, gpu_layers=0)) as backend:
        cache = make_cache(
            backend, IMAGES.layers, [0] * 4, config, lambda layer: n_images if layer.image_rows else 64,
            shift_keys=lambda layer, keys, deltas: keys,
        )  # fmt: skip
        yield Fed(IMAGES, cache, backend)
        cache.close()


def cross_attention_of(f: Fed) -> CrossAttentionCache:
    assert isinstance(f.cache, CompositeCache)
    return next(cache for cache in f.cache.caches if isinstance(cache, CrossAttentionCache))


def test_tokens_see_the_latest_image_of_their_sequence() -> None:
    with pictures(3) as f:
        f.feed(run(0, 0, 4))
        f.feed([*run(1, 0, 2), *run(0, 4, 9), *run(2, 0, 1)], [0, 4])
        f.feed([(0, 9), (1, 2), (2, 1)])
        f.feed(run(0, 10, 14), [2])
        f.feed([(1, 3), (0, 14)])


def test_tokens_see_all_images_of_a_run() -> None:
    """Images with no token between them are seen together, each with its own number of rows."""
    with pictures(4) as f:
        f.feed(run(0, 0, 6), [2, 3, 4])
        f.feed(run(0, 6, 9))
        f.feed(run(0, 9, 10), [0])  # a token stands before it: it is seen alone
        f.feed(run(0, 10, 11))
        f.remove(0, 8)
        f.feed(run(0, 8, 9))
        assert f.images[0] == {2: 2, 3: 3, 4: 4}


def test_an_image_of_a_run_that_goes_on_stays() -> None:
    """The run may be cut between two batches."""
    with pictures(2) as f:
        f.feed(run(0, 0, 2), [1])
        f.feed(run(0, 2, 4), [0])
        with pytest.raises(ContextOverflowError, match="still seen"):
            f.cache.require_room(f.batch(run(0, 4, 6), [1]))
        f.feed(run(0, 4, 5))


def test_a_run_that_lost_an_image_cannot_be_resumed() -> None:
    with pictures(2) as f:
        f.feed(run(0, 0, 5), [1, 2])
        assert [f.cache.can_resume(0, position) for position in (1, 2, 3, 5)] == [True] * 4
        f.feed(run(0, 5, 7), [0])
        assert [f.cache.can_resume(0, position) for position in (1, 2, 3, 5, 6)] == [True, False, False, False, True]


def test_attention_reads_from_the_first_to_the_last_row_that_is_seen() -> None:
    """Not what others keep in the cache."""
    with pictures(8) as f:
        f.feed([(s, 0) for s in range(7)], range(7))
        cache = cross_attention_of(f)
        assert cache.shape_key == (7, 13, 0, 20)
        f.feed([(5, 1)])
        assert cache.shape_key == (1, 0, 12, 20)  # 3 rows from row 15 on, in steps of 4
        f.feed([(3, 1), (4, 1)])
        assert cache.shape_key == (2, 0, 8, 16)
        f.feed([(7, 0), (6, 1)])
        assert cache.shape_key == (2, 0, 16, 20)  # the last one has a single row, the 18th


def test_one_slot_goes_from_image_to_image() -> None:
    with pictures(1) as f:
        for turn in range(3):
            begin = 5 * turn
            f.feed(run(0, begin, begin + 5), [0])
        assert f.cache.can_resume(0, 11)
        assert not f.cache.can_resume(0, 10)
        assert f.cache.can_resume(0, 0)
        f.remove(0, 11)
        f.feed(run(0, 11, 13))


def test_an_image_that_earlier_rows_of_the_batch_see_stays() -> None:
    with pictures(1) as f:
        f.feed(run(0, 0, 3), [0])
        before = answers(f.cache)
        with pytest.raises(ContextOverflowError, match="1 images do not fit: the others of 1 are still seen"):
            f.cache.begin(f.batch(run(0, 3, 6), [1]))
        assert answers(f.cache) == before
        f.feed([(0, 3)])
        f.feed(run(0, 4, 6), [0])


def test_an_image_that_another_sequence_sees_stays() -> None:
    with pictures(1) as f:
        f.feed(run(0, 0, 3), [1])
        f.share(0, 1, 3)
        with pytest.raises(ContextOverflowError):
            f.cache.require_room(f.batch([(0, 3)], [0]))
        f.remove(1, 1)
        f.feed([(0, 3), (1, 1)], [0])


def test_an_image_leaves_with_its_position() -> None:
    with pictures(2) as f:
        f.feed(run(0, 0, 12), [3, 7])
        f.remove(0, 7)
        f.feed(run(0, 7, 9))
        f.shift(0, 1, 3)
        f.feed(run(0, 6, 7))
        assert not any(f.images[0])
        f.feed(run(0, 7, 9), [1])
        f.shift(0, 1, 4)
        f.feed(run(0, 5, 6))
        assert list(f.images[0]) == [4]


def test_without_images_the_layer_is_skipped_and_says_so() -> None:
    with pictures(1) as f:
        f.cache.begin(f.batch([(0, 0)]))
        cache = cross_attention_of(f)
        assert (cache.new_rows, cache.sees_images) == (0, False)
        for ask in (cache.get, lambda: cache.gate):
            with pytest.raises(ValueError, match="skip the layer"):
                ask()
        with pytest.raises(ValueError, match="no image comes"):
            cache.put(None, None)


def test_layers_must_agree() -> None:
    layers = [shape(image_rows=3), shape(image_rows=4)]
    config = CacheConfig(dtype="f32", flash_attention=True)
    with Backend(BackendParams(threads=1, gpu_layers=0)) as backend:
        for wrong in (layers, [LayerShape(kv_heads=1, key_dim=32, value_dim=32)]):
            with pytest.raises(ValueError, match="the same image_rows"):
                CrossAttentionCache(backend, wrong, [0] * len(wrong), 1, config)
    with pytest.raises(ValueError, match="at least one slot"):
        ImageSlots(0)


def test_scrubbing_leaves_images_alone() -> None:
    with fed(IMAGES) as f:
        f.feed([*run(0, 0, 3), *run(1, 0, 3)], [0, 3])
        f.remove(0)
        f.cache.scrub()
        f.feed([(1, 3)])
        cache = cross_attention_of(f)
        keys = cache._store._keys[0].numpy().reshape(-1, IMAGE_ROWS, 64)
        assert np.abs(keys).max(axis=(1, 2)).astype(bool).tolist() == [False, True, False, False]


@dataclass
class Picture:
    """Shared ones are one object."""

    name: int
    gone: bool = False


def run_of(images: Mapping[int, Picture], position: int) -> list[Picture]:
    """The latest picture up to a position, and those right before it."""
    seen = sorted((p for p in images if p <= position), reverse=True)
    return [images[p] for i, p in enumerate(seen) if p == seen[0] - i][::-1]


few = st.integers(0, 2)


class SlotsAgainstLists(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.slots = ImageSlots(3)
        self.twin: dict[int, dict[int, Picture]] = {s: {} for s in range(3)}
        self.held: dict[int, Picture] = {}

    @rule(firsts=st.dictionaries(few, st.integers(0, 12)), offsets=st.sets(st.tuples(few, few), max_size=3))
    def step(self, firsts: dict[int, int], offsets: set[tuple[int, int]]) -> None:
        # A step of a sequence comes after all its images.
        firsts = {s: max([p, *(q + 1 for q in self.twin[s])]) for s, p in firsts.items()}
        new = sorted((s, firsts[s] + offset) for s, offset in offsets if s in firsts)
        kept = []
        for sequence, images in self.twin.items():
            first = firsts.get(sequence, -1)
            if images and ((sequence, first) not in new or first - 1 in images):
                kept += run_of(images, max(images))
        needed = len({id(p) for p in kept if not p.gone})
        slots = self.slots.find(new, firsts)
        assert (slots is None) == (len(new) > 3 - needed)
        if slots is None:
            return
        assert len(set(slots)) == len(new)
        free = set(range(3)) - self.slots.used
        assert len(free & set(slots)) == min(len(free), len(new))
        self.slots.place(new, slots, range(1, len(new) + 1))
        for (sequence, position), slot in zip(new, slots, strict=True):
            if slot in self.held:
                self.held[slot].gone = True
            self.held[slot] = self.twin[sequence][position] = Picture(slot)

    @rule(source=st.integers(0, 2), into=st.integers(0, 2), end=st.integers(0, 20))
    def share(self, source: int, into: int, end: int) -> None:
        if source != into and not self.twin[into]:
            self.slots.share(source, into, end)
            self.twin[into] = {p: picture for p, picture in self.twin[source].items() if p < end}

    @rule(sequence=st.integers(0, 2), begin=st.integers(0, 15), end=st.none() | st.integers(0, 20))
    def remove(self, sequence: int, begin: int, end: int | None) -> None:
        self.slots.remove(sequence, begin, end)
        images = self.twin[sequence].items()
        self.twin[sequence] = {p: i for p, i in images if p < begin or (end is not None and p >= end)}

    @rule(sequence=st.integers(0, 2), begin=st.integers(0, 10), discard=st.integers(1, 8))
    def shift(self, sequence: int, begin: int, discard: int) -> None:
        self.slots.shift(sequence, begin, discard)
        kept = [(p, i) for p, i in self.twin[sequence].items() if not begin <= p < begin + discard]
        self.twin[sequence] = {p if p < begin else p - discard: i for p, i in kept}

    @invariant()
    def agree(self) -> None:
        self.slots.check()
        there = {id(i): i for images in self.twin.values() for i in images.values() if not i.gone}
        assert self.slots.used == {i.name for i in there.values()}
        everywhere = [id(i) for images in self.twin.values() for i in images.values() if not i.gone]
        assert self.slots.n_shared == len({i for i in everywhere if everywhere.count(i) > 1})
        for sequence, images in self.twin.items():
            for position in range(20):
                seen = tuple(i.name for i in run_of(images, position) if not i.gone)
                assert self.slots.seen_by(sequence, position) == seen
                resumable = not any(i.gone for i in run_of(images, position - 1))
                assert self.slots.can_resume(sequence, position) == resumable


SlotsAgainstLists.TestCase.settings = settings(max_examples=scaled(80, quick=20), stateful_step_count=25)
TestSlotsAgainstLists = SlotsAgainstLists.TestCase
