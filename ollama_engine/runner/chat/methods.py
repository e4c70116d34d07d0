"""ChatMethods: what an Engine offers of conversations, for threads and for asyncio."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar, overload

if TYPE_CHECKING:
    from typing_extensions import Unpack

    # A program that does not chat starts sooner without these, and without jinja2.
    from ollama_engine.runner.chat.call import ChatCall
    from ollama_engine.runner.chat.options import ChatBesideFormat, ChatKeywords, TemplateKeywords
    from ollama_engine.runner.chat.preparation import ChatPreparation
    from ollama_engine.runner.chat.results import ChatResult
    from ollama_engine.runner.chat.streams import AsyncChatStream, ChatStream
    from ollama_engine.runner.core.submission import Submission
    from ollama_engine.runner.load.loading import Loaded
    from ollama_engine.sample import SamplingParams
    from ollama_engine.segments import Segment

__all__ = ["ChatMethods"]

T = TypeVar("T")


class ChatMethods:
    """Conversations: messages in, a message out, as the model's chat template and dialect have it."""

    if TYPE_CHECKING:

        def _open(self) -> Loaded:
            """The model. Raises ClosedError."""

        def _ready(self) -> Submission:
            """Where requests go. Raises ClosedError."""

    _chat_preparation: ChatPreparation | None = None

    def _preparation(self) -> ChatPreparation:
        from ollama_engine.runner.chat.preparation import ChatPreparation  # noqa: PLC0415 (see above)

        loaded = self._open()
        if self._chat_preparation is None:
            self._chat_preparation = ChatPreparation(loaded)  # a lost race makes one more, and no harm
        return self._chat_preparation

    @property
    def chat_templates(self) -> tuple[str, ...]:
        """Names of the chat templates in the model's file, as a rule "default"; () where it has none.

        `chat` then takes the template of a family whose control tokens the model knows, with a warning. Models that
        only continue text may know such tokens too.
        """
        from ollama_engine.runner.chat.template_sources import sources_in_file  # noqa: PLC0415 (see above)

        return tuple(sources_in_file(self._open().gguf.metadata))

    def chat_template(self, name: str | None = None) -> str:
        """The source of a chat template (Jinja): of that name, or the default one. Raises ChatError for no such one."""
        return self._preparation().templates.choose(name).source

    @overload
    def chat(
        self, messages: Sequence[object], params: SamplingParams | None = ..., *, format: type[T],
        **options: Unpack[ChatBesideFormat],
    ) -> ChatResult[T]: ...  # fmt: skip
    @overload
    def chat(
        self, messages: Sequence[object], params: SamplingParams | None = ..., **options: Unpack[ChatKeywords]
    ) -> ChatResult: ...
    def chat(
        self, messages: Sequence[object], params: SamplingParams | None = None, **options: Unpack[ChatKeywords]
    ) -> ChatResult:
        """The assistant's answer to a conversation.

        Args:
            messages: as OpenAI's or Ollama's APIs take them: dicts, dataclasses or pydantic objects with "role" and
                "content", and `ChatResult.message` of earlier turns.
            params: how tokens are chosen; by default as the model's Modelfile says, if it has one.
            options: see `ChatKeywords`. Those of `SamplingParams` (`max_tokens=4`) stand above `params`.

        Text of messages, tools and documents never becomes a control token, unless `trust_contents` says so.

        Raises ChatError for messages, tools or templates that cannot be read, and where the template refuses them; and
        as `generate` does.
        """
        return self.chat_stream(messages, params, **options).result()

    def chat_stream(
        self, messages: Sequence[object], params: SamplingParams | None = None, **options: Unpack[ChatKeywords]
    ) -> ChatStream:
        """The answer piece by piece; closing or dropping the iterator cancels the request at its next step.

        The request starts with this call, not with the first `next`. Raises as `chat` does.
        """
        return self._chat_call(messages, params, options).chat_stream(self)

    @overload
    async def achat(
        self, messages: Sequence[object], params: SamplingParams | None = ..., *, format: type[T],
        **options: Unpack[ChatBesideFormat],
    ) -> ChatResult[T]: ...  # fmt: skip
    @overload
    async def achat(
        self, messages: Sequence[object], params: SamplingParams | None = ..., **options: Unpack[ChatKeywords]
    ) -> ChatResult: ...
    async def achat(
        self, messages: Sequence[object], params: SamplingParams | None = None, **options: Unpack[ChatKeywords]
    ) -> ChatResult:
        """`chat` for asyncio. Cancelling the task cancels the request."""
        return await self.achat_stream(messages, params, **options).result()

    def achat_stream(
        self, messages: Sequence[object], params: SamplingParams | None = None, **options: Unpack[ChatKeywords]
    ) -> AsyncChatStream:
        """`chat_stream` for asyncio: `async for chunk in engine.achat_stream(...)`, where an event loop runs.

        A `format` that is new is compiled, and a long conversation or images are read, in a thread; errors in them
        raise with the first chunk then.
        """
        return self._chat_call(messages, params, options).achat_stream(self)

    def _chat_call(self, messages: Sequence[object], params: SamplingParams | None, keywords: ChatKeywords) -> ChatCall:
        from ollama_engine.runner.chat.call import ChatCall  # noqa: PLC0415 (see above)

        return ChatCall(self._ready(), self._preparation(), messages, params, keywords)

    def apply_template(
        self, messages: Sequence[object], *, add_generation_prompt: bool = True, **options: Unpack[TemplateKeywords]
    ) -> list[Segment]:
        """The prompt of a conversation, in segments that `generate` and the others take.

        The template's own text is `Text` with `parse_special`, all else is without; joined, they are the text of
        transformers' `apply_chat_template`. `add_generation_prompt` ends it with the beginning of an answer; not where
        `continue_final_message` is given. Raises as `chat` does.
        """
        return self._preparation().segments(messages, options, add_generation_prompt=add_generation_prompt)
