"""ChatCall: the answer to a conversation, whose prompt is rendered when the call is handed in."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from ollama_engine.runner.chat.answer_reader import AnswerReader
from ollama_engine.runner.chat.forced_call import ForcedCall, naming_tools
from ollama_engine.runner.chat.options import ChatKeywords, split_keywords
from ollama_engine.runner.chat.preparation import ChatPreparation
from ollama_engine.runner.chat.streams import AsyncChatStream, ChatStream
from ollama_engine.runner.core.generation_call import GenerationCall
from ollama_engine.runner.core.submission import Submission
from ollama_engine.runner.core.text_room import TextRoom
from ollama_engine.sample import SamplingParams

if TYPE_CHECKING:
    from ollama_engine.runner.chat.results import ChatChunk
    from ollama_engine.runner.request.channel import RequestChannel
    from ollama_engine.runner.request.inputs import Inputs
    from ollama_engine.runner.request.results import Chunk
    from ollama_engine.runner.schedule.sequence import Generation

__all__ = ["ChatCall", "ChunkReader"]


class ChunkReader:
    """Reads the chunks of an answer whose prompt is still to be rendered. It holds nothing of the conversation."""

    answer: AnswerReader | None = None

    def __call__(self, chunk: Chunk) -> ChatChunk:
        """A chunk as the answer's dialect reads it. Chunks come in their order, each once."""
        assert self.answer is not None, "chunks come after the request was submitted"
        return self.answer.read(chunk)


class ChatCall(GenerationCall):
    """Messages are read, and copied, as it is made. Raises ChatError for what cannot be read, and ConfigError."""

    def __init__(
        self, submission: Submission, preparation: ChatPreparation, messages: Sequence[object],
        params: SamplingParams | None, keywords: ChatKeywords,
    ) -> None:  # fmt: skip
        chat, chosen, options = split_keywords(params, keywords, submission.loaded.defaults.params)
        super().__init__(submission, "", chosen, options)
        self.read = ChunkReader()
        self._preparation = preparation
        self._conversation = preparation.read(messages, chat)
        self._chat = chat
        self._forced: ForcedCall | None = None

    @property
    def prepares_long(self) -> bool:
        return self._conversation.is_long or not self._preparation.knows(self._chat)

    def prepare(self) -> None:
        """Render the conversation. Raises ChatError for what the template refuses.

        And ContextOverflowError for a last message that no context holds. Rendering copies each text several times, so
        of one that is cut, the middle goes before it.
        """
        loaded = self._submission.loaded
        tokenizer, room = loaded.tokenizer, TextRoom.of_prompt(loaded.num_ctx, self.options)
        with self._submission.counting_refusals():
            room.check(tokenizer, self._conversation.certain)
        conversation = self._conversation.shortened(partial(room.shortened, tokenizer))
        prepared = self._preparation.prepare(
            conversation, self.params, self._chat, self.options.format, checkpoint=self._preparing.check
        )
        self.options = prepared.request_options(self.options)
        self.prompt, self.inputs, self.params = prepared.segments, prepared.inputs, prepared.params
        self.show_special, self._forced = prepared.show_special, prepared.forced
        self.read.answer = prepared.reader()
        self._preparing.check()

    def chat_stream(self, engine: object) -> ChatStream:
        """Start it; its chunks, read as the dialect has it. See `GenerationCall.stream`."""
        return ChatStream(self.stream(engine), self.read)

    def achat_stream(self, engine: object) -> AsyncChatStream:
        """`chat_stream` for asyncio."""
        return AsyncChatStream(self.astream(engine), self.read)

    def _make(
        self, inputs: Inputs, params: SamplingParams, channel: RequestChannel, *, follows: Generation | None = None
    ) -> Generation:
        with naming_tools(self._forced):
            return super()._make(inputs, params, channel, follows=follows)
