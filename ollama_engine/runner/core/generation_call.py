"""GenerationCall: answers to prompts, waited for, or the answer to one prompt taken piece by piece."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, cast

from ollama_engine.runner.core.input_processor import refuse_media
from ollama_engine.runner.core.submission import Submission
from ollama_engine.runner.core.text_room import TextRoom
from ollama_engine.runner.request.answer_count import AnswerCount
from ollama_engine.runner.request.call import EngineCall
from ollama_engine.runner.request.channel import RequestChannel, run_or_cancel
from ollama_engine.runner.request.options import RequestOptions
from ollama_engine.runner.request.preparing import Preparing
from ollama_engine.runner.request.prompts import Prompt, Prompts, about_one, check_params, has_media, is_many, many
from ollama_engine.runner.request.request import Request
from ollama_engine.runner.request.results import Chunk, Completion, Result, collect
from ollama_engine.runner.request.stream import Stream
from ollama_engine.runner.schedule.sequence import Generation
from ollama_engine.sample import SamplingParams

if TYPE_CHECKING:
    from ollama_engine.runner.request.astream import AsyncStream
    from ollama_engine.runner.request.inputs import Inputs

__all__ = ["GenerationCall"]

_ONE = AnswerCount(1, 1)


class GenerationCall(EngineCall[list[Completion]]):
    """`count` answers to each prompt, which share the cells of the prompt; the value has those to the first one first.

    `submit`, `stream` and `astream` take the place of `wait` and `coming` for one answer to one prompt. Where a prompt
    is made of something else, as of a conversation, `prepare` makes it: it sets `prompt`, `params`, `options` and,
    where it has read them, `inputs`.
    """

    def __init__(
        self, submission: Submission, prompt: Prompt | Prompts, params: SamplingParams, options: RequestOptions,
        count: AnswerCount = _ONE,
    ) -> None:  # fmt: skip
        super().__init__()
        self.prompt = prompt
        self.params = params
        self.options = options
        self.inputs: Inputs | None = None
        """Those of one prompt, where they have been read already."""
        self.show_special = False
        """Whether control tokens of the answer are part of its text."""
        self._submission = submission
        self._count = count
        self._preparing = Preparing(self.cancel, options.timeout)
        self._chunks: list[list[Chunk]] = []

    # -- several answers, or one as a whole ----------------------------------------------------------------------------

    @property
    def takes_long(self) -> bool:
        return self.prepares_long or self._submission.takes_long(self.options, self.prompt)

    def hand_in(self) -> None:
        check_params(self.params)
        self.prepare()
        name = "prompts" if is_many(self.prompt) else None
        made: list[Generation] = []
        for number, prompt in enumerate(many(self.prompt)):
            with about_one(name, number):
                inputs, first = self._inputs_of(prompt), None
                for params in self._count.variants(self.params):
                    made.append(self._make(inputs, params, self.channel(), follows=first))
                    first = first or made[-1]
        self._chunks = [[] for _ in made]
        self._submission.thread.submit(*made)

    def take(self, number: int, event: Chunk | Result) -> None:
        assert isinstance(event, Chunk), "a generation has chunks"
        self._chunks[number].append(event)

    def value(self) -> list[Completion]:
        return self._count.chosen(list(map(collect, self._chunks)), self.params)

    def _make(
        self, inputs: Inputs, params: SamplingParams, channel: RequestChannel, *, follows: Generation | None = None
    ) -> Generation:
        return self._submission.make(
            inputs, params, self.options, channel, follows=follows, show_special=self.show_special,
            preparing=self._preparing,
        )  # fmt: skip

    # -- one answer, piece by piece ------------------------------------------------------------------------------------

    @property
    def prepares_long(self) -> bool:
        """Whether no event loop should wait for `prepare`."""
        return False

    def prepare(self) -> None:
        """Make the prompt, where it is made of something else."""

    def submit(self, engine: object) -> Request:
        """Start it, and return at once: the request's `result` waits. It keeps `engine` alive."""
        request = Request(engine)
        run_or_cancel(request.channel, self._start, request)
        return request

    def stream(self, engine: object) -> Stream:
        """Start it; its chunks come from the iterator, which cancels it when it is closed or dropped."""
        request = Request(engine)
        stream = Stream(request)
        run_or_cancel(request.channel, self._start, request)
        return stream

    def astream(self, engine: object) -> AsyncStream:
        """`stream` for asyncio. What takes long is done in a thread; its errors come with the first chunk."""
        from ollama_engine.runner.request.astream import AsyncStream  # noqa: PLC0415 (a program without asyncio ...)

        stream = AsyncStream(engine)
        self._preparing.flag = channel = stream.channel
        if self.prepares_long:
            stream.start(partial(self._prepare_and_start, channel), in_thread=True)
            return stream
        self.prepare()
        inputs = self._inputs_at_once()
        stream.start(partial(self._start_with, inputs, channel), in_thread=self.takes_long)
        return stream

    def _start(self, request: Request) -> None:
        self._preparing.flag = request.channel
        self.prepare()
        request.inputs = self._inputs()
        request.generation = self._start_with(request.inputs, request.channel)

    def _prepare_and_start(self, channel: RequestChannel) -> Generation:
        self.prepare()
        return self._start_with(None, channel)

    def _start_with(self, inputs: Inputs | None, channel: RequestChannel) -> Generation:
        """Submit the request; `inputs` of None are read first."""
        generation = self._make(self._inputs() if inputs is None else inputs, self.params, channel)
        self._submission.thread.submit(generation)
        return generation

    def _inputs(self) -> Inputs:
        """The inputs of the one prompt."""
        return self._inputs_of(cast(Prompt, self.prompt))

    def _inputs_of(self, prompt: Prompt) -> Inputs:
        if self.inputs is not None:
            return self.inputs
        room = TextRoom.of_prompt(self._submission.loaded.num_ctx, self.options)
        return self._submission.inputs(prompt, self._preparing, room=room)

    def _inputs_at_once(self) -> Inputs | None:
        """The inputs of a prompt that an event loop may wait for, whose errors are raised here; None of another."""
        if self.inputs is not None or not self._submission.reads_long(self.prompt):
            return self._inputs()
        self._submission.thread.check_open()
        if has_media(self.prompt):
            refuse_media(self._submission.loaded)
        return None
