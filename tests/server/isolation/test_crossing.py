"""Large calls and results are encoded, written and read beside the event loop, and are what small ones are."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ollama_engine.sample import SamplingParams
from ollama_engine.segments import Media, Text
from ollama_engine.server.isolation import called_model, codec, crossing, engine_calls, model_server_app
from ollama_engine.server.isolation.crossing import (
    LARGE,
    SENT_AT_ONCE,
    beside,
    content_of,
    is_large,
    prepared,
)
from tests.server.isolation.conftest import Pair

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def written(body: Mapping[str, Any]) -> list[bytes]:
    async def pieces() -> list[bytes]:
        content = await content_of(body)
        return [content] if isinstance(content, bytes) else [piece async for piece in content]

    return asyncio.run(pieces())


@given(st.dictionaries(st.text(), JSON, max_size=3))
def test_any_body_arrives(body: dict[str, Any]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(crossing, "LARGE", 40)
        patch.setattr(crossing, "PIECE", 3)
        patch.setattr(crossing, "SLICE", 2)
        patch.setattr(crossing, "SENT_AT_ONCE", 8)
        assert json.loads(b"".join(crossing._pieces(body))) == body


def test_a_large_body_is_written_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    most: list[int] = []

    def noted(value: Any) -> str:
        text = dumps(value)
        most.append(len(text))
        return text

    dumps = json.dumps
    monkeypatch.setattr(crossing.json, "dumps", noted)
    body = {"args": ["x" * 1_000_000, ["\n"] * 100_000, list(range(100_000)), [["y"] * 9] * 10_000]}
    pieces = written(body)
    assert json.loads(b"".join(pieces)) == body
    assert max(most) < 1 << 17
    assert max(map(len, pieces)) < SENT_AT_ONCE + (1 << 17)
    assert len(pieces) > 5


@pytest.mark.parametrize("value", [
    "x" * LARGE, b"x" * LARGE, [1] * LARGE,
    {str(n): n for n in range(LARGE)}, [["x" * 40] * 40] * 40, Text("x" * LARGE),
    [Text("x")] * 2000, Media(np.zeros((200, 200, 3), np.uint8)), {"a": Media(b"x" * LARGE)}, [np.zeros(LARGE)],
])  # fmt: skip
def test_what_is_large(value: object) -> None:
    assert is_large(value)
    assert not is_large([Text("x"), {"role": "user", "content": "x" * 1000}, SamplingParams(), 5, None])


def test_what_is_large_is_done_in_a_thread() -> None:
    def thread(_: object) -> str:
        return threading.current_thread().name

    async def names() -> list[str]:
        return [await beside(thread, value) for value in ("x", "x" * LARGE)] + [
            await prepared(thread, value)() for value in ("x", "x" * LARGE)
        ]

    small, large, now, later = asyncio.run(names())
    assert small == now == threading.current_thread().name
    assert small not in (large, later)


def test_no_large_call_is_encoded_on_the_event_loop(text_models: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    places = [(called_model, "encode"), (called_model, "decode"), (crossing, "_pieces"), (crossing, "read_json")]
    threads = noted_threads(monkeypatch, places)
    text = "a fox " * 20_000

    async def ask() -> str:
        ids = await text_models.remote.tokenize(text)
        assert len(ids) > LARGE
        assert await text_models.remote.detokenize(ids) == text
        stream = text_models.remote.generate(ids, SamplingParams(max_tokens=1), on_overflow="truncate")
        assert [chunk async for chunk in stream]
        return threading.current_thread().name

    loop = text_models.run(ask())
    assert {name for name, thread in threads if thread != loop} == {"encode", "decode", "_pieces", "read_json"}
    # What is small is the encoded text that came, and what the stream says of itself.
    assert not [name for name, thread in threads if thread == loop and name in ("encode", "_pieces")]


def test_no_large_call_is_decoded_on_the_event_loop_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = noted_threads(monkeypatch, [(module, name) for module in (engine_calls, model_server_app)
                                          for name in ("encode", "decode")])  # fmt: skip

    class Echo:
        def tokenize(self, *args: Any) -> list[Any]:
            return list(args)

        async def detokenize(self, *args: Any) -> list[Any]:
            return list(args)

        async def astream(self, *args: Any) -> Any:
            for arg in args:
                yield arg

        generate = astream

    async def ask() -> None:
        body = {"args": codec.encode(["x" * LARGE]), "kwargs": {}}
        echo: Any = Echo()
        await engine_calls.call_engine(echo, body | {"method": "tokenize"})
        await engine_calls.engine_stream(echo, body | {"method": "stream"})
        await model_server_app.call_method(echo, body | {"method": "detokenize"})
        await model_server_app.start(echo, body | {"method": "generate"})

    asyncio.run(ask())
    assert len(threads) == 6
    assert threading.current_thread().name not in {thread for _, thread in threads}


def noted_threads(monkeypatch: pytest.MonkeyPatch, places: list[tuple[Any, str]]) -> list[tuple[str, str]]:
    """Names of these functions, and of the threads that call them, from now on."""
    threads: list[tuple[str, str]] = []

    def noting(work: Callable[..., Any], name: str) -> Callable[..., Any]:
        def noted(*args: Any, **kwargs: Any) -> Any:
            threads.append((name, threading.current_thread().name))
            return work(*args, **kwargs)

        return noted

    for module, name in places:
        monkeypatch.setattr(module, name, noting(getattr(module, name), name))
    return threads
