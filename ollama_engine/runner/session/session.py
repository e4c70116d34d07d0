"""Session: a text that grows by what is appended and answered, and stays in the cache meanwhile."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Mapping
from threading import Lock, RLock
from typing import TYPE_CHECKING, Any, TypeVar

from ollama_engine.closing import Closing
from ollama_engine.errors import ClosedError, ConfigError, EngineBusyError
from ollama_engine.not_copied import NotCopied
from ollama_engine.runner.core.engine_core import EngineCore
from ollama_engine.runner.core.submission import Submission
from ollama_engine.runner.core.tasks import End, EngineTask, Release
from ollama_engine.runner.core.text_room import TextRoom
from ollama_engine.runner.request.answer_options import AnswerKeywords, answer_options
from ollama_engine.runner.request.astream import AsyncStream
from ollama_engine.runner.request.channel import CancelFlag, RequestChannel, arun_or_cancel, run_or_cancel
from ollama_engine.runner.request.images import with_images
from ollama_engine.runner.request.inputs import Inputs
from ollama_engine.runner.request.options import RequestKeywords, RequestOptions
from ollama_engine.runner.request.preparing import Preparing
from ollama_engine.runner.request.prompts import Images, Prompt, check_params, has_media, is_long
from ollama_engine.runner.request.request import Request
from ollama_engine.runner.request.results import Completion
from ollama_engine.runner.request.stream import Stream
from ollama_engine.runner.schedule.pinned_prefix import PinnedPrefix
from ollama_engine.runner.session.answer import SessionAnswer, refuse_answer_options
from ollama_engine.runner.session.cache_tasks import copy_out, encode, fork_into, put_back, trim_to
from ollama_engine.runner.session.file import SessionFile, layout_of, write_session
from ollama_engine.runner.session.identity import ModelIdentity
from ollama_engine.runner.session.rewinding import counted, without_last
from ollama_engine.sample import SamplingParams

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

__all__ = ["Session"]

log = logging.getLogger(__name__)

Result = TypeVar("Result")

_NOTHING = SamplingParams(max_tokens=0)
ONE_BY_ONE = "a session takes texts one by one"


class Session(NotCopied, Closing):
    """Tokens whose keys and values stay in the cache until the session is closed: only new tokens are computed.

    A session does one thing at a time: another thread's call meanwhile, or one while a stream is open, raises
    EngineBusyError. All methods raise ClosedError when the session or its Engine is closed. Dropping a session closes
    it; its prefix can be reused by other requests until its cells are needed.

    Open sessions take cells from the Engine's pool of num_ctx * parallel. A request that finds no room because of them
    raises ContextOverflowError.
    """

    def __init__(self, engine: object, submission: Submission, identity: ModelIdentity) -> None:
        self._engine = engine  # kept alive
        self._submission = submission
        self._identity = identity
        self._pinned = PinnedPrefix()
        self._inputs = Inputs.text([])
        self._answer: SessionAnswer | None = None
        # Each call takes a lock object of its own: `with` releases it wherever a signal handler raises.
        self._turn = Lock()
        self._choosing = RLock()
        self._closed = False
        self._release = self._pinned.release = Release.of(self, self._pinned, submission.thread.drop)

    # -- what it holds -------------------------------------------------------------------------------------------------

    @property
    def tokens(self) -> tuple[int, ...]:
        """All tokens: those appended, and those of answers whose chunks were read."""
        with (turn := Lock()):
            self._begin(turn)
            return tuple(self._inputs.tokens.tolist())

    @property
    def text(self) -> str:
        """The text of all tokens, without control tokens and media."""
        with (turn := Lock()):
            self._begin(turn)
            return self._submission.loaded.tokenizer.decode(self._inputs.text_tokens())

    def __len__(self) -> int:
        return len(self.tokens)

    def __bool__(self) -> bool:
        # True even when empty: `if session` asks whether there is a session.
        return True

    # -- growing -------------------------------------------------------------------------------------------------------

    def append(self, prompt: Prompt, *, images: Images = None, **options: Unpack[RequestKeywords]) -> None:
        """Add text, or token ids, and compute its keys and values now. `images` are as in `Engine.generate`.

        The first text gets the BOS token, also an empty one, as an empty prompt does; later texts do not. Texts are
        tokenized one by one. With on_overflow "truncate" or "shift", tokens above num_ctx are dropped as of a prompt.
        Raises as `Engine.generate` does; the session is then unchanged.
        """
        with (turn := Lock()):
            self._begin(turn)
            refuse_answer_options(options)
            preparing = Preparing(CancelFlag(), RequestOptions.of(options).timeout)
            added = self._added(with_images(prompt, images), preparing, options)
            if len(added):
                self._complete(self._inputs.join(added), _NOTHING, options, preparing)

    def generate(self, params: SamplingParams | None = None, **options: Unpack[AnswerKeywords]) -> Completion:
        """Generate an answer to the session's tokens, and append it to the session.

        The token that ended the answer is not part of it: append it where a template wants it. With on_overflow
        "shift", tokens that leave the context also leave the session. Raises as `Engine.generate` does, and ConfigError
        for an empty session; the session is then unchanged.
        """
        with (turn := Lock()):
            self._begin(turn)
            return self._complete(self._inputs, params, options)

    def stream(self, params: SamplingParams | None = None, **options: Unpack[AnswerKeywords]) -> Stream:
        """`generate` as a stream. If it is closed early, the session keeps the chunks that were read."""
        request = Request(self._engine)
        stream = Stream(request)
        run_or_cancel(request.channel, self._stream, params, options, request.channel)
        return stream

    async def aappend(self, prompt: Prompt, *, images: Images = None, **options: Unpack[RequestKeywords]) -> None:
        """`append` for asyncio: the same arguments and errors. Cancelling the task cancels the request."""
        await self._settled()
        with (turn := Lock()):
            self._begin(turn)
            refuse_answer_options(options)
            prompt, flag = with_images(prompt, images), CancelFlag()
            preparing = Preparing(flag, RequestOptions.of(options).timeout)
            if has_media(prompt) or is_long([prompt]):
                added = await arun_or_cancel(flag, asyncio.to_thread, self._added, prompt, preparing, options)
            else:
                added = self._added(prompt, preparing, options)
            if len(added):
                await self._acomplete(self._inputs.join(added), _NOTHING, options, preparing)

    async def agenerate(self, params: SamplingParams | None = None, **options: Unpack[AnswerKeywords]) -> Completion:
        """`generate` for asyncio. Cancelling the task cancels the answer."""
        await self._settled()
        with (turn := Lock()):
            self._begin(turn)
            return await self._acomplete(self._inputs, params, options)

    def astream(self, params: SamplingParams | None = None, **options: Unpack[AnswerKeywords]) -> AsyncStream:
        """`stream` for asyncio. Call it where an event loop runs.

        After an answer that was cancelled, it waits for the step that ends that answer.
        """
        stream = AsyncStream(self._engine)
        run_or_cancel(stream.channel, self._stream, params, options, stream.channel)
        return stream

    def _added(self, prompt: Prompt, preparing: Preparing, options: RequestKeywords) -> Inputs:
        room = TextRoom.of_prompt(self._submission.loaded.num_ctx, RequestOptions.of(options))
        first = not len(self._inputs)
        return self._submission.inputs(prompt, preparing, add_special=first, several=ONE_BY_ONE, room=room)

    def _stream(self, params: SamplingParams | None, keywords: Mapping[str, Any], channel: RequestChannel) -> None:
        with (turn := Lock()):
            self._begin(turn)
            self._start(self._inputs, params, keywords, channel).before = None

    def _complete(
        self, inputs: Inputs, params: SamplingParams | None, keywords: Mapping[str, Any],
        preparing: Preparing | None = None,
    ) -> Completion:  # fmt: skip
        request = Request(self._engine, watched=True)

        def complete() -> Completion:
            answer = self._start(inputs, params, keywords, request.channel, preparing)
            completion = request.result()
            answer.before = None
            return completion

        completion = run_or_cancel(request.channel, complete)
        self._settle()
        return completion

    async def _acomplete(
        self, inputs: Inputs, params: SamplingParams | None, keywords: Mapping[str, Any],
        preparing: Preparing | None = None,
    ) -> Completion:  # fmt: skip
        stream = AsyncStream(self._engine)

        async def complete() -> Completion:
            answer = self._start(inputs, params, keywords, stream.channel, preparing)
            completion = await stream.completion()
            answer.before = None
            return completion

        completion = await arun_or_cancel(stream.channel, complete)
        self._settle()
        return completion

    async def _settled(self) -> None:
        """Wait for a cancelled answer to end, without blocking the event loop."""
        answer = self._answer
        if answer is not None and not answer.coming and not answer.generation.ended:
            await asyncio.to_thread(len, self)

    def _start(
        self, inputs: Inputs, params: SamplingParams | None, keywords: Mapping[str, Any], channel: RequestChannel,
        preparing: Preparing | None = None,
    ) -> SessionAnswer:  # fmt: skip
        params, options = answer_options(params, keywords, self._submission.loaded.defaults.params)
        if not options.cache:
            raise ConfigError("a session lives in the cache: it takes no cache=False")
        check_params(params, "; append a text, then generate")
        if not len(inputs):
            raise ConfigError("the session holds no tokens; append some first")
        made = self._submission.make(inputs, params, options, channel, pinned=self._pinned, preparing=preparing)
        # Before it is submitted: an interrupt must not leave a request that the session does not know.
        self._answer = answer = SessionAnswer(made, self._inputs)
        self._submission.thread.submit(made)
        return answer

    # -- rewind and fork -----------------------------------------------------------------------------------------------

    def rewind(self, n: int) -> None:
        """Drop the last `n` tokens and free their cells. Raises ConfigError where the session has fewer."""
        with (turn := Lock()):
            self._begin(turn)
            inputs = without_last(self._inputs, n)
            self._do(trim_to(self._pinned, inputs))
            self._inputs = inputs

    def fork(self) -> Session:
        """Another session with the same tokens, sharing their cells. Raises ContextOverflowError for lack of room."""
        fork = Session(self._engine, self._submission, self._identity)
        try:
            with (turn := Lock()):
                self._begin(turn)
                fork._inputs = inputs = self._inputs
                self._do(fork_into(self._pinned, fork._pinned, inputs))
            return fork
        except BaseException:
            fork.close()
            raise

    # -- files ---------------------------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write the tokens with their keys and values to a file, completely or not at all. See `Engine.load_session`.

        Requests wait while keys, values and embeddings of images are copied, but not while the file is written.
        Raises OSError: FileExistsError, unless `overwrite`; a read-only file, or none that is regular, is not replaced.
        """
        with (turn := Lock()):
            self._begin(turn)
            inputs = self._inputs
            held = [self._do(encode(span.item)) for span in inputs.media if not span.item.ready()]
            saved, embeddings = self._do(copy_out(self._pinned, inputs, held))
        layout = layout_of(self._submission.loaded)
        file = SessionFile(self._identity.fingerprint, layout, inputs, saved, embeddings)
        write_session(path, file, overwrite=overwrite)

    def _restore(self, file: SessionFile) -> None:
        """Restore a file. Computes keys and values, or states, again where this Engine stores them in another form."""
        with (turn := Lock()):
            self._begin(turn)
            inputs = file.inputs
            if not len(inputs):
                return
            if file.layout != layout_of(self._submission.loaded):
                log.info("a session is of another kv_cache_type or version; its %d tokens are computed", len(inputs))
                self._complete(inputs, _NOTHING, {})
                return
            self._inputs = inputs
            if file.saved.length:
                self._do(put_back(self._pinned, inputs, file.saved))

    # -- internals -----------------------------------------------------------------------------------------------------

    def _begin(self, turn: Lock) -> None:
        """Start a call: it owns the session while `turn` is locked. Takes over the tokens of the last answer first."""
        if self._closed:
            raise ClosedError("this Session is closed")
        self._submission.thread.check_open()
        with self._choosing:
            if self._turn.locked():
                raise EngineBusyError("this session is in use by another call; fork it to do two things at once")
            self._turn = turn
        self._settle()

    def _settle(self) -> None:
        answer = self._answer
        if answer is None:
            return
        if answer.coming:
            raise EngineBusyError("an answer of this session is still coming; take all of it or close its stream")
        if not answer.generation.ended:
            end = End(answer.generation)
            self._submission.thread.do(end)
            end.result()
        self._inputs, self._answer = answer.inputs(), None

    def _do(self, work: Callable[[EngineCore], Result]) -> Result:
        task = EngineTask(work)
        self._submission.thread.do(task)
        return task.result()

    # -- lifetime ------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Cancel a running answer, and release the cache. Any thread may call it; safe to call twice."""
        self._closed = True
        answer = self._answer
        if answer is not None:
            answer.generation.channel.cancelled = True
        self._submission.thread.post(self._release)

    def __enter__(self) -> Self:
        if self._closed:
            raise ClosedError("this Session is closed")
        return self

    def __repr__(self) -> str:
        return f"Session({'closed' if self._closed else counted(len(self._inputs))})"
