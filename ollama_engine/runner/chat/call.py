"""ChatCall: the answer to a conversation, whose prompt is rendered when the call is handed in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ollama_engine.runner.chat.answer_reader import AnswerReader
from ollama_engine.runner.chat.forced_call import ForcedCall, naming_tools
from ollama_engine.runner.chat.options import ChatOptions
from ollama_engine.runner.chat.prepared import ChatPreparation
from ollama_engine.runner.core.generation_call import GenerationCall
from ollama_engine.runner.core.submission import Submission
from ollama_engine.runner.request.options import RequestOptions
from ollama_engine.sample import SamplingParams

if TYPE_CHECKING:
    from ollama_engine.runner.chat.results import ChatChunk
    from ollama_engine.runner.request.channel import RequestChannel
    from ollama_engine.runner.request.inputs import Inputs
    from ollama_engine.runner.request.results import Chunk
    from ollama_engine.runner.schedule.sequence import Generation

__all__ = ["ChatCall"]


class ChatCall(GenerationCall):
    """Messages are read, and copied, as it is made. Raises ChatError for what cannot be read."""

    def __init__(
        self, submission: Submission, preparation: ChatPreparation, messages: Sequence[object], params: SamplingParams,
        chat: ChatOptions, options: RequestOptions,
    ) -> None:  # fmt: skip
        super().__init__(submission, "", params, options)
        self._preparation = preparation
        self._conversation = preparation.read(messages, chat)
        self._chat = chat
        self._forced: ForcedCall | None = None
        self._reader: AnswerReader | None = None
        self._dropped_messages = 0

    @property
    def prepares_long(self) -> bool:
        return self._conversation.is_long

    def prepare(self) -> None:
        """Render the conversation. Raises ChatError for what the template refuses."""
        prepared = self._preparation.prepare(self._conversation, self.params, self._chat, self._preparing.check)
        self.options = prepared.request_options(self.options)
        self.prompt, self.inputs, self.params = prepared.segments, prepared.inputs, prepared.params
        self.show_special, self._forced = prepared.show_special, prepared.forced
        self._reader = prepared.reader()
        self._dropped_messages = prepared.dropped_messages
        self._preparing.check()

    def read(self, chunk: Chunk) -> ChatChunk:
        """A chunk of the answer, as its dialect reads it. Chunks come in their order, each once."""
        assert self._reader is not None, "chunks come after the request was submitted"
        read = self._reader.read(chunk)
        if self._dropped_messages:
            read = replace(read, dropped_messages=self._dropped_messages)
            self._dropped_messages = 0
        return read

    def _make(
        self, inputs: Inputs, params: SamplingParams, channel: RequestChannel, *, follows: Generation | None = None
    ) -> Generation:
        with naming_tools(self._forced):
            return super()._make(inputs, params, channel, follows=follows)
