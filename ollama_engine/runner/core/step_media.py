"""Images of a step: encoding those that sequences wait for, and the embeddings that a prepared step reads."""

from __future__ import annotations

from dataclasses import dataclass

from ollama_engine.input import BatchMedia, FloatArray
from ollama_engine.runner.core.request_queue import RequestQueue
from ollama_engine.runner.execute.executor import NO_MEDIA, Executor
from ollama_engine.runner.execute.graph import MediaRows
from ollama_engine.runner.observe.monitor import Monitor
from ollama_engine.runner.schedule.batching import Step
from ollama_engine.runner.schedule.sequence import ScheduledRequest

__all__ = ["NO_STEP_MEDIA", "StepMedia", "encode_next", "serve_gap", "step_media"]


@dataclass(frozen=True, slots=True)
class StepMedia:
    """The media of one step, in memory of its own."""

    rows: MediaRows = NO_MEDIA
    failures: tuple[tuple[BatchMedia, Exception], ...] = ()
    """Items that cannot be computed with; their rows are zeros."""


NO_STEP_MEDIA = StepMedia()


def step_media(step: Step, executor: Executor, monitor: Monitor) -> StepMedia:
    """The embeddings for a prepared step. They are all ready: no other input of an image is planned."""
    failures: list[tuple[BatchMedia, Exception]] = []
    rows = executor.media_rows(step.batch, lambda *failed: failures.append(failed))
    failed = [part for part, _ in failures]
    # All of them before a sequence lets go of one: it may be the last that holds what another part reads, too.
    read = [(part, _whole(part.item.embeddings())) for part in step.batch.media if part not in failed]
    for part, embeddings in read:
        sequence = step.sequence_at(part.row)
        unread = [held for held in sequence.encoded if held is not embeddings]
        if len(unread) == len(sequence.encoded) and sequence.reading is not embeddings:
            monitor.image_hit()
        sequence.encoded, sequence.reading = unread, None if _is_last(part, sequence) else embeddings
    return StepMedia(rows, tuple(failures))


def encode_next(sequence: ScheduledRequest, queue: RequestQueue, number: int, monitor: Monitor) -> None:
    """Encode the next image that a sequence waits for. Where that fails, its request ends."""
    begin, item = monitor.clock(), queue.gaps.image_for(sequence)
    assert item is not None, "a sequence that has a turn waits for an image"
    try:
        sequence.encoded.append(_whole(item.embeddings()))
    except Exception as error:
        queue.end(sequence, error)
    else:
        monitor.encoded(number, begin)


def serve_gap(queue: RequestQueue, number: int, monitor: Monitor) -> None:
    """Embed one batch of texts, or encode one image: whose turn it is, if anybody waits."""
    turns = queue.gap_turns()
    if isinstance(turns, ScheduledRequest):
        encode_next(turns, queue, number, monitor)
    elif turns:
        for request, event in turns[0].batcher.run(turns):
            queue.finish(request, event)


def _is_last(part: BatchMedia, sequence: ScheduledRequest) -> bool:
    """Whether nothing more of images is read for a sequence behind this part."""
    last = sequence.inputs.media[-1]
    return part.item is last.item and part.offset + part.n == last.offset + last.end - last.begin


def _whole(rows: FloatArray) -> FloatArray:
    """The embeddings of the image that these rows are a view of."""
    return rows if rows.base is None else rows.base
