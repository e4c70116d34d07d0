"""Whose turn the gap between two steps is: images of sequences, batches of texts, priorities."""

from __future__ import annotations

from typing import Any

import numpy as np

from ollama_engine.errors import ImageError
from ollama_engine.input import FloatArray, Input, MediaItem
from ollama_engine.runner.request.channel import RequestChannel
from ollama_engine.runner.request.inputs import Inputs
from ollama_engine.runner.request.options import RequestOptions
from ollama_engine.runner.schedule.row_readers import AllRows
from ollama_engine.runner.schedule.scheduler import FAIR_EVERY
from ollama_engine.runner.schedule.scoring import Scoring
from tests.runner.core.test_request_queue import Events, Rig, events


class Images:
    """Items that are ready once they were encoded; the order in which that happens."""

    def __init__(self) -> None:
        self.encoded: list[int] = []

    def item(self, key: int, n: int = 3, *, broken: bool = False) -> MediaItem:
        def embeddings() -> FloatArray:
            if broken:
                raise ImageError("broken")
            if key not in self.encoded:
                self.encoded.append(key)
            return np.zeros((n, 4), np.float32)

        return MediaItem(key, n, embeddings, ready=lambda: key in self.encoded)


def scoring(rig: Rig, *items: MediaItem, text: int = 2, **options: Any) -> Scoring:
    """A request whose prompt is some text, then each of these images with a token behind it."""
    inputs = [Input(1)] * text
    for item in items:
        inputs += [Input(0, item), *[Input(0)] * (item.n_inputs - 1), Input(2)]
    made = Scoring(
        channel=RequestChannel(Events()), inputs=Inputs.of(inputs), num_ctx=100, submitted_at=rig.now,
        options=RequestOptions(**options), row_reader=AllRows(len(inputs), 4),
    )  # fmt: skip
    rig.core.add(made)
    return made


def test_nothing_is_planned_into_an_image_that_is_not_encoded() -> None:
    rig, images = Rig(), Images()
    made = scoring(rig, images.item(1), images.item(2), text=70)
    planned = []
    while rig.core.busy:
        n = len(images.encoded)
        rig.core.step()
        planned.append((made.submitted, [*images.encoded]))
        assert len(images.encoded) <= n + 1
    # Text up to the first image, which is encoded meanwhile, then up to the second.
    assert 0 < max(submitted for submitted, encoded in planned if not encoded) <= 70
    assert 70 < max(submitted for submitted, encoded in planned if encoded == [1]) <= 70 + 3 + 1
    assert images.encoded == [1, 2]


def test_a_few_tokens_wait_for_the_image_behind_them() -> None:
    """One step for both: a step for a few tokens takes as long."""
    rig, images = Rig(), Images()
    made = scoring(rig, images.item(1))
    rig.core.step()
    assert (made.submitted, images.encoded) == (0, [])
    rig.core.step()
    assert (made.submitted, images.encoded) == (6, [1])
    rig.run()
    assert made.ended


def test_embeddings_are_held_while_they_are_read() -> None:
    rig, images = Rig(), Images()
    made = scoring(rig, images.item(1, 20), text=2)
    held = {}
    while not made.ended:
        rig.core.step()
        held[made.submitted] = made.reading is not None
    assert {n for n, is_held in held.items() if is_held} == {n for n in held if 0 < n < 22}
    assert not held[max(held)]


def test_images_of_several_requests_come_in_turn() -> None:
    rig, images = Rig(parallel=3), Images()
    for number in range(3):
        scoring(rig, *[images.item(10 * number + i) for i in range(4)])
    rig.run()
    assert [key // 10 for key in images.encoded[:6]] == [0, 1, 2, 0, 1, 2]


def test_a_higher_priority_comes_first_and_one_of_nine_is_the_oldest() -> None:
    rig, images = Rig(parallel=2), Images()
    scoring(rig, *[images.item(i) for i in range(10)])
    rig.core.step()
    scoring(rig, *[images.item(100 + i) for i in range(20)], priority=1)
    rig.run()
    high = [number for number, key in enumerate(images.encoded) if key >= 100]
    low_meanwhile = [number for number, key in enumerate(images.encoded[: high[-1]]) if key < 100]
    assert 1 <= len(low_meanwhile) <= 2 + len(high) // FAIR_EVERY + 1


def test_images_and_texts_take_turns() -> None:
    rig, images = Rig(), Images()
    scoring(rig, *[images.item(i) for i in range(8)])
    rig.pieces(8)
    order = ""
    while rig.core.busy:
        before = len(images.encoded), len(rig.batcher.served)
        rig.core.step()
        after = len(images.encoded), len(rig.batcher.served)
        assert sum(after) - sum(before) <= 1
        order += "i" * (after[0] - before[0]) + "t" * (after[1] - before[1])
    assert order.count("i") == order.count("t") == 8
    assert "tttt" not in order
    assert "iii" not in order


def test_an_image_of_lower_priority_than_a_running_sequence_takes_one_gap_of_nine() -> None:
    rig, images = Rig(), Images()
    rig.executor.batch_size = 2
    running = scoring(rig, text=96, priority=1)
    waiting = scoring(rig, *[images.item(i) for i in range(9)])
    steps = 0
    while not running.ended:
        rig.core.step()
        steps += 1
    assert steps > 3 * FAIR_EVERY
    assert 1 <= len(images.encoded) <= steps // FAIR_EVERY + 1
    rig.run()
    assert waiting.ended
    assert images.encoded == [*range(9)]


def test_a_broken_image_ends_each_who_needs_it() -> None:
    rig, images = Rig(parallel=3), Images()
    broken = images.item(1, broken=True)
    first, good, second = scoring(rig, broken), scoring(rig, images.item(2)), scoring(rig, broken)
    rig.run()
    assert [isinstance(events(request)[-1], ImageError) for request in (first, good, second)] == [True, False, True]
    assert rig.core.metrics().requests["error"] == 2


def test_a_cancelled_request_has_no_image_encoded() -> None:
    rig, images = Rig(), Images()
    made = scoring(rig, *[images.item(i) for i in range(5)])
    rig.core.step()
    rig.core.step()
    n = len(images.encoded)
    made.channel.cancelled = True
    rig.run()
    assert made.ended
    assert len(images.encoded) == n


def test_a_text_costs_nothing() -> None:
    """Trap: each step asked all sequences for their images. Those that follow a step ask none."""
    rig = Rig()
    rig.scoring(64)
    rig.run()
    assert rig.queue.gaps._wanting == []
    assert rig.queue.gaps._gaps == 0
