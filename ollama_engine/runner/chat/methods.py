"""ChatMethods: what an Engine offers of conversations, for threads and for asyncio."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from ollama_engine.runner.request.channel import RequestChannel, run_or_cancel
from ollama_engine.runner.request.options import RequestOptions
from ollama_engine.runner.request.preparing import Preparing
from ollama_engine.runner.request.request import Request
from ollama_engine.runner.request.stream import Stream
from ollama_engine.sample import SamplingParams

if TYPE_CHECKING:
    from typing_extensions import Unpack

    # A program that does not chat starts sooner without these, and without jinja2.
    from ollama_engine.runner.chat.late_reader import LateReader
    from ollama_engine.runner.chat.options import ChatKeywords, TemplateKeywords
    from ollama_engine.runner.chat.prepared import ChatPreparation, PreparedChat
    from ollama_engine.runner.chat.results import ChatResult
    from ollama_engine.runner.chat.streams import AsyncChatStream, ChatStream
    from ollama_engine.runner.core.submission import Submission
    from ollama_engine.runner.load.loading import Loaded
    from ollama_engine.segments import Segment

__all__ = ["ChatMethods"]

_DEFAULT_PARAMS = SamplingParams()


class ChatMethods:
    """Conversations: messages in, a message out, as the model's chat template and dialect have it."""

    if TYPE_CHECKING:

        def _open(self) -> Loaded:
            """The model. Raises ClosedError."""

        def _ready(self) -> Submission:
            """Where requests go. Raises ClosedError."""

    _chat_preparation: ChatPreparation | None = None

    def _preparation(self) -> ChatPreparation:
        from ollama_engine.runner.chat.prepared import ChatPreparation  # noqa: PLC0415 (see above)

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

    def chat(
        self, messages: Sequence[object], params: SamplingParams = _DEFAULT_PARAMS, **options: Unpack[ChatKeywords]
    ) -> ChatResult:
        """The assistant's answer to a conversation.

        Args:
            messages: as OpenAI's or Ollama's APIs take them: dicts, dataclasses or pydantic objects with "role" and
                "content", and `ChatResult.message` of earlier turns.
            params: how tokens are chosen.
            options: see `ChatKeywords`.

        Text of messages, tools and documents never becomes a control token, unless `trust_contents` says so.

        Raises ChatError for messages, tools or templates that cannot be read, and where the template refuses them; and
        as `generate` does.
        """
        return self.chat_stream(messages, params, **options).result()

    def chat_stream(
        self, messages: Sequence[object], params: SamplingParams = _DEFAULT_PARAMS, **options: Unpack[ChatKeywords]
    ) -> ChatStream:
        """The answer piece by piece; closing or dropping the iterator cancels the request at its next step.

        The request starts with this call, not with the first `next`. Raises as `chat` does.
        """
        from ollama_engine.runner.chat.forced_call import naming_tools  # noqa: PLC0415
        from ollama_engine.runner.chat.options import split_keywords  # noqa: PLC0415
        from ollama_engine.runner.chat.streams import ChatStream  # noqa: PLC0415

        submission, (chat, rest) = self._ready(), split_keywords(options)
        request = Request(self)
        preparing = Preparing(request.channel, rest.timeout)
        preparation = self._preparation()
        prepared = preparation.prepare(preparation.read(messages, chat), params, chat)
        wanted = prepared.request_options(rest)
        stream = ChatStream(Stream(request), prepared.reader())

        def start() -> None:
            preparing.check()
            request.inputs = inputs = submission.inputs(prepared.segments, preparing)
            with naming_tools(prepared.forced):
                request.generation = submission.start(
                    inputs, prepared.params, wanted, request.channel, show_special=prepared.show_special,
                    preparing=preparing,
                )  # fmt: skip

        run_or_cancel(request.channel, start)
        return stream

    async def achat(
        self, messages: Sequence[object], params: SamplingParams = _DEFAULT_PARAMS, **options: Unpack[ChatKeywords]
    ) -> ChatResult:
        """`chat` for asyncio. Cancelling the task cancels the request."""
        return await self.achat_stream(messages, params, **options).result()

    def achat_stream(
        self, messages: Sequence[object], params: SamplingParams = _DEFAULT_PARAMS, **options: Unpack[ChatKeywords]
    ) -> AsyncChatStream:
        """`chat_stream` for asyncio: `async for chunk in engine.achat_stream(...)`, where an event loop runs.

        A `format` that is new is compiled, and a long conversation or images are read, in a thread; errors in them
        raise with the first chunk then.
        """
        from ollama_engine.runner.chat.late_reader import LateReader  # noqa: PLC0415
        from ollama_engine.runner.chat.options import split_keywords  # noqa: PLC0415
        from ollama_engine.runner.chat.streams import AsyncChatStream  # noqa: PLC0415
        from ollama_engine.runner.request.astream import AsyncStream  # noqa: PLC0415

        submission, (chat, rest) = self._ready(), split_keywords(options)
        preparation, stream = self._preparation(), AsyncStream(self)
        preparing = Preparing(stream.channel, rest.timeout)
        conversation = preparation.read(messages, chat)
        reader = LateReader()
        starter = partial(_starter, submission, rest, stream.channel, preparing, reader)
        if conversation.is_long:

            def prepare_and_submit() -> None:
                starter(preparation.prepare(conversation, params, chat))[0]()

            stream.start(prepare_and_submit, in_thread=True)
        else:
            submit, takes_long = starter(preparation.prepare(conversation, params, chat))
            stream.start(submit, in_thread=takes_long)
        return AsyncChatStream(stream, reader)

    def apply_template(
        self, messages: Sequence[object], *, add_generation_prompt: bool = True, **options: Unpack[TemplateKeywords]
    ) -> list[Segment]:
        """The prompt of a conversation, in segments that `generate` and the others take.

        The template's own text is `Text` with `parse_special`, all else is without; joined, they are the text of
        transformers' `apply_chat_template`. `add_generation_prompt` ends it with the beginning of an answer; not where
        `continue_final_message` is given. Raises as `chat` does.
        """
        from ollama_engine.runner.chat.options import ChatOptions  # noqa: PLC0415

        wanted = ChatOptions.of(options)
        add = add_generation_prompt and not wanted.continue_final_message
        return self._preparation().segments(messages, wanted, add_generation_prompt=add)


def _starter(
    submission: Submission, options: RequestOptions, channel: RequestChannel, preparing: Preparing, reader: LateReader,
    prepared: PreparedChat,
) -> tuple[Callable[[], None], bool]:  # fmt: skip
    """A function that submits a chat, and whether calling it takes long. `reader` will read the answer."""
    from ollama_engine.runner.chat.forced_call import naming_tools  # noqa: PLC0415

    wanted = prepared.request_options(options)
    reader.use(prepared.reader())
    preparing.check()
    start = submission.starter(
        prepared.segments, prepared.params, wanted, channel, preparing, show_special=prepared.show_special
    )

    def submit() -> None:
        with naming_tools(prepared.forced):
            start()

    return submit, submission.takes_long(wanted, prepared.segments)
