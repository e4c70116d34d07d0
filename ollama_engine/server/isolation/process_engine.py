"""ProcessEngine: an Engine in a process of its own, for programs: what crashes there is an error here.

    engine = Engine("model.gguf", isolation="process")

The process is that of a server's models (`ModelProcess`). An event loop in a thread of this process talks to it, so
that threads and asyncio tasks call the same methods as those of an Engine.
"""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from concurrent.futures import CancelledError, Future, wait
from contextlib import aclosing
from pathlib import Path
from typing import Any, TypeVar

from ollama_engine.async_tasks import cancel_and_wait, running_loop
from ollama_engine.chat.tool_schemas import read_tools
from ollama_engine.closing import Closing
from ollama_engine.config import EngineConfig
from ollama_engine.engine import Engine
from ollama_engine.errors import ClosedError, ConfigError
from ollama_engine.not_copied import NotCopied
from ollama_engine.runner.chat.results import ChatResult
from ollama_engine.runner.request.channel import LOOK_SECONDS
from ollama_engine.runner.request.results import Completion
from ollama_engine.server.isolation.codec import decode, encode
from ollama_engine.server.isolation.crossing import beside, prepared
from ollama_engine.server.isolation.formats import FormatAtHome
from ollama_engine.server.isolation.hosted_model import Operation
from ollama_engine.server.isolation.loader import watched
from ollama_engine.server.isolation.model_process import ModelProcess
from ollama_engine.server.isolation.process_streams import AsyncProcessStream, ProcessStream
from ollama_engine.server.isolation.remote_model import lines, request
from ollama_engine.server.isolation.remote_stream import RemoteStream
from ollama_engine.store.lookup import find_model

__all__ = ["ProcessEngine"]

Named = TypeVar("Named")
Value = TypeVar("Value")

CLOSED_MEANWHILE = "the Engine was closed while this request was served"
INSTEAD = {
    "session": (), "load_session": (), "fork": (), "submit": ("take stream",),
    "map_batches": ("pass generate a list of prompts",),
}  # fmt: skip
"""Methods of an Engine whose objects share its memory, and what there is for them here."""


def _refused(name: str) -> Callable[..., Any]:
    """A method that is not to be had in another process. Calling it raises ConfigError."""

    def method(self: ProcessEngine, *args: Any, **kwargs: Any) -> Any:
        raise ConfigError(
            f"an Engine in a process of its own has no {name}: what it returns shares the engine's memory",
            advice=[*INSTEAD[name], "load the model in this process (isolation none)"],
        )

    return _named(method, name)


def _waiting(name: str) -> Callable[..., Any]:
    """A method that waits for its result."""

    def method(self: ProcessEngine, *args: Any, **kwargs: Any) -> Any:
        return self._wait(self._called(name, args, kwargs))

    return _named(method, name)


def _awaiting(name: str) -> Callable[..., Coroutine[Any, Any, Any]]:
    """The same for asyncio."""

    async def method(self: ProcessEngine, *args: Any, **kwargs: Any) -> Any:
        running_loop()  # or the error of where none runs comes from asyncio, once the request has begun
        body, answer_format = await beside(_body, name, args, kwargs)
        return await self._coming(self._asked(body, answer_format))

    return _named(method, f"a{name}")


def _streaming(name: str, made: Callable[[ProcessEngine, RemoteStream[Any]], Value]) -> Callable[..., Value]:
    """A method whose result comes piece by piece. The request starts with the call; its errors come with the first."""

    def method(self: ProcessEngine, *args: Any, **kwargs: Any) -> Value:
        return made(self, self._streamed(name, args, kwargs))

    return _named(method, name)


def _fact(name: str) -> property:
    return property(lambda self: self._wait(self._called(name, (), {})))


def _named(method: Named, name: str) -> Named:
    function: Any = method
    function.__name__, function.__qualname__ = name, f"ProcessEngine.{name}"
    function.__wrapped__ = getattr(Engine, name)  # whose parameters `help` and `inspect.signature` show
    function.__doc__ = f"`Engine.{name}`, in the process that has the engine."
    return method


class ProcessEngine(NotCopied, Closing):
    """An Engine's methods, its sessions, forks and `submit` aside, over a process that has the engine.

    Arguments and results are those of `Engine`; functions cannot cross, such as logits processors. Where the process
    ends, calls raise ModelProcessError, which says how; this program goes on. Load another one then.

    Args:
        model: as `Engine` takes it.
        projector: as `Engine` takes it.
        progress: as `Engine` takes it; called from another thread. What it raises ends the load.
        options: Engine's others.
    """

    def __init__(
        self, model: str | os.PathLike[str], *, projector: str | os.PathLike[str] | None = None,
        progress: Callable[[int, int], None] | None = None, **options: Any,
    ) -> None:  # fmt: skip
        EngineConfig(**options)  # what is wrong with them needs no process to be said
        found = find_model(os.fspath(model))
        path = Path(os.fspath(model) if found is None else found.path)
        os.stat(path)
        self._pid, self._closed = os.getpid(), False
        self._submitting = threading.RLock()
        self._loop = _start_loop()
        paths = {"model": model, "projector": projector, "draft_model": options.get("draft_model")}
        whole = {**options, **{name: None if path is None else os.fspath(path) for name, path in paths.items()}}
        try:
            self._process = self._wait(_loaded(path, encode(whole), progress or (lambda done, total: None)))
        except BaseException:
            _stop_loop(self._loop)
            raise
        # It holds neither this object, nor what would keep it alive.
        self._end = weakref.finalize(self, _end, self._pid, self._loop, self._process)

    # -- as `Engine` has them ------------------------------------------------------------------------------------------

    generate, agenerate = _waiting("generate"), _awaiting("generate")
    stream, astream = _streaming("stream", ProcessStream), _streaming("stream", AsyncProcessStream)
    chat, achat = _waiting("chat"), _awaiting("chat")
    chat_stream, achat_stream = (
        _streaming("chat_stream", ProcessStream), _streaming("chat_stream", AsyncProcessStream),
    )  # fmt: skip
    apply_template, chat_template = _waiting("apply_template"), _waiting("chat_template")
    embed, aembed = _waiting("embed"), _awaiting("embed")
    embeddings, aembeddings = _waiting("embeddings"), _awaiting("embeddings")
    embed_image, aembed_image = _waiting("embed_image"), _awaiting("embed_image")
    rank, arank = _waiting("rank"), _awaiting("rank")
    score, ascore = _waiting("score"), _awaiting("score")
    logits = _waiting("logits")
    tokenize, detokenize, token_bytes = _waiting("tokenize"), _waiting("detokenize"), _waiting("token_bytes")
    slots, steps, trace = _waiting("slots"), _waiting("steps"), _waiting("trace")
    cancel, set_priority = _waiting("cancel"), _waiting("set_priority")
    info, config, memory = _fact("info"), _fact("config"), _fact("memory")
    metrics, chat_templates = _fact("metrics"), _fact("chat_templates")
    sleep, wake_up, is_sleeping = _waiting("sleep"), _waiting("wake_up"), _fact("is_sleeping")
    session, load_session, fork = _refused("session"), _refused("load_session"), _refused("fork")
    submit, map_batches = _refused("submit"), _refused("map_batches")
    plan_memory, devices = staticmethod(Engine.plan_memory), staticmethod(Engine.devices)

    def _called(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Coroutine[Any, Any, Any]:
        """A call, encoded now: what cannot cross raises where it is given."""
        return self._asked(*_body(method, args, kwargs))

    async def _asked(self, body: Mapping[str, Any], answer_format: FormatAtHome) -> Any:
        result = (await request(self._process, "/engine/method", body))["result"]
        return _read(await beside(decode, result), answer_format)

    def _streamed(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> RemoteStream[Any]:
        body = prepared(_body, method, args, kwargs)

        async def chunks() -> AsyncGenerator[Any, None]:
            async with aclosing(lines(self._process, *await body(), "/engine/pieces")) as arriving:
                async for chunk in arriving:
                    yield chunk

        async def begin() -> RemoteStream[Any]:
            return RemoteStream(chunks())

        return self._wait(begin())

    def _wait(self, work: Coroutine[Any, Any, Value]) -> Value:
        """The result of work on the loop. An interrupt cancels it."""
        future = self._submit(work)
        try:
            while not wait((future,), timeout=LOOK_SECONDS).done:
                pass  # or an interrupt that comes as the wait begins would be noticed behind it only
            return future.result()
        except CancelledError:
            raise ClosedError(CLOSED_MEANWHILE) from None
        except BaseException:
            future.cancel()
            raise

    async def _coming(self, work: Coroutine[Any, Any, Value]) -> Value:
        """The same for asyncio. Cancelling the task that awaits it cancels the work."""
        future = asyncio.wrap_future(self._submit(work))
        try:
            await asyncio.wait((future,))
        finally:
            future.cancel()
        if future.cancelled():
            raise ClosedError(CLOSED_MEANWHILE)
        return future.result()

    def _submit(self, work: Coroutine[Any, Any, Value]) -> Future[Value]:
        if self._pid != os.getpid():
            work.close()
            raise ClosedError("this Engine was opened before the process forked; open one in the child")
        with self._submitting:
            try:
                if not self._closed:
                    return asyncio.run_coroutine_threadsafe(work, self._loop)
            except RuntimeError:  # its loop is closed: the program ends
                pass
        work.close()
        raise ClosedError("this Engine is closed")

    # -- lifetime ------------------------------------------------------------------------------------------------------

    @property
    def pid(self) -> int:
        """The process that has the engine."""
        return self._process.pid

    @property
    def closed(self) -> bool:
        """Whether it takes no requests any more: after `close`, or because its process has ended."""
        return self._closed or self._process.over()

    def close(self) -> None:
        """End the process; requests that run end with ClosedError or ModelProcessError. Safe to call twice."""
        if self._pid == os.getpid() and self._end.detach() is not None:
            with self._submitting:  # tasks that were submitted before are cancelled by the loop as it stops
                ending = self._submit(self._process.close())
                self._closed = True
            try:
                ending.result()
            except BaseException:  # an interrupt
                self._process.kill()
                self._process.remove_folder()
                raise
            finally:
                _stop_loop(self._loop)

    def __enter__(self) -> ProcessEngine:
        if self.closed:
            raise ClosedError("this Engine is closed")
        return self

    def __repr__(self) -> str:
        return f"ProcessEngine({'closed' if self.closed else f'process {self.pid}'})"


def _body(method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[dict[str, Any], FormatAtHome]:
    """A call as it crosses, and how its values are read here. Raises ConfigError for what cannot cross."""
    answer_format = FormatAtHome(kwargs.get("format"))
    if "format" in kwargs:
        kwargs["format"] = answer_format.sent
    if kwargs.get("tools") is not None:
        kwargs["tools"] = read_tools(kwargs["tools"])  # Python functions become schemas
    return {"method": method, "args": encode(list(args)), "kwargs": encode(kwargs)}, answer_format


def _read(result: Any, answer_format: FormatAtHome) -> Any:
    if isinstance(result, list):
        return [_read(item, answer_format) for item in result]
    return answer_format.reading(result) if isinstance(result, (Completion, ChatResult)) else result


async def _loaded(path: Path, options: Any, progress: Callable[[int, int], None]) -> ModelProcess:
    process = ModelProcess(path, path.name)
    try:
        await process.started()
        await watched(process, {"Operation": Operation.ALLOC, "EngineOptions": options}, progress)
    except BaseException:
        process.kill()
        await process.close()
        raise
    return process


def _start_loop() -> asyncio.AbstractEventLoop:
    """An event loop that runs in a thread of its own."""
    loop = asyncio.new_event_loop()

    def run() -> None:
        loop.run_forever()
        tasks = asyncio.all_tasks(loop)
        loop.run_until_complete(cancel_and_wait(*tasks))
        loop.close()

    threading.Thread(target=run, name="ollama_engine process", daemon=True).start()
    return loop


def _stop_loop(loop: asyncio.AbstractEventLoop) -> None:
    loop.call_soon_threadsafe(loop.stop)


def _end(pid: int, loop: asyncio.AbstractEventLoop, process: ModelProcess) -> None:
    """End the process of an object that was dropped, or is there at exit; not in a child that was forked."""
    if pid != os.getpid():
        return
    process.kill()
    process.remove_folder()

    async def close() -> None:
        await process.close()
        loop.stop()

    work = close()
    try:
        asyncio.run_coroutine_threadsafe(work, loop)
    except RuntimeError:  # the loop is closed already
        work.close()
