"""Bodies of any JSON are read as json.loads reads them, in bounds, while other threads run."""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
import threading
from functools import partial
from json.decoder import scanstring
from typing import Any

import httpx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ollama_engine.errors import ConfigError
from ollama_engine.server import json_bodies, json_reading
from ollama_engine.server.json_reading import AT_ONCE, DEEPEST, MOST_VALUES, read_json
from ollama_engine.server.large_answers import MOST_TEXTS, SENT_AT_ONCE, large_response
from ollama_engine.server.openai.schemas import MOST_BIASES
from ollama_engine.server.requests.schemas import MOST_MESSAGES
from tests.server.ollama.asking import post

SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner))


CONVERSATIONS = {
    "/api/chat": "messages", "/v1/chat/completions": "messages", "/v1/messages": "messages",
    "/apply-template": "messages", "/v1/responses": "input",
}  # fmt: skip


@pytest.fixture
def walks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is left to json.loads for being small."""
    monkeypatch.setattr(json_reading, "AT_ONCE", 0)


def read(reader: Any, text: str) -> Any:
    """What a reader makes of a text, or where it sees a fault."""
    try:
        return repr(reader(text if reader is json.loads else text.encode()))
    except json.JSONDecodeError as error:
        return error.pos


@pytest.mark.usefixtures("walks")
@given(
    VALUES, st.sampled_from([None, 1]), st.integers(0, 200), st.sampled_from(["", "]", "}", ",", ":", '"', "1", " "])
)
def test_any_text_is_read_as_the_standard_library_reads_it(value: Any, indent: int | None, cut: int, new: str) -> None:
    text = json.dumps(value, indent=indent)
    assert repr(read_json(text.encode())) == repr(json.loads(text))
    at = cut % (len(text) + 1)
    for damaged in (text[:at], text[:at] + new + text[at:], text[:at] + new + text[at + 1 :]):
        # From 3.13 on, the standard library points at the comma before an end, this reader at the end.
        ours, theirs = read(read_json, damaged), read(json.loads, damaged)
        assert ours == theirs or (isinstance(theirs, int) and damaged[theirs] == ",")


@pytest.fixture
def small_pieces(walks: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts are cut everywhere."""
    monkeypatch.setattr(json_reading, "FIRST_PIECE", 12)
    monkeypatch.setattr(json_reading, "LARGEST_PIECE", 13)


ESCAPES = st.sampled_from(
    ["\\\\", '\\"', "\\n", "\\u00e4", "\\ud83d", "\\ude00", "\\ud83d\\ude00", "ab", "ä", "字", "😀", "\0"]
)


@pytest.mark.usefixtures("small_pieces")
@given(st.lists(ESCAPES, max_size=40).map("".join), st.integers(0, 9), st.integers(0, 300))
def test_a_text_is_cut_between_characters_and_escapes(inside: str, shift: int, cut: int) -> None:
    text = f'["{"x" * shift}{inside}"]'
    for whole in (text, text[:cut]):
        assert read(read_json, whole) == read(json.loads, whole)


def test_no_more_of_a_text_than_a_piece_is_decoded_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    pieces: list[int] = []

    def noted(text: str, begin: int) -> tuple[str, int]:
        pieces.append(len(text))
        return scanstring(text, begin)

    monkeypatch.setattr(json_reading, "scanstring", noted)
    for text in ("x" * 1_000_000, '"' * 500_000, "字" * 300_000):
        assert read_json(json.dumps([text], ensure_ascii=False).encode()) == [text]
    assert max(pieces) <= 1 << 17
    assert len(pieces) < 150, "pieces become larger"


@pytest.mark.parametrize(("body", "message"), [
    (b"1" * 100_000, "a number of more than 8191 characters at character 0"),
    (b'["\xc3\xa4", ' + b" " * 100_000 + b'"\xc3(', "byte 100008 is 0xc3"),
    (b"[" * 100_000, rf"nested more than {DEEPEST} times at character {DEEPEST + 1}; make it flatter"),
    (b'{"a":' * 500 + b"1" + b"}" * 500, rf"nested more than {DEEPEST} times at character {DEEPEST * 5 + 1}"),
    (b"[" + b"[]," * MOST_VALUES + b"1]", rf"more than {MOST_VALUES} values; send less at a time"),
    (b"1" * 5000, "integer string conversion"),
    (b'{"a": "\xff"}', "byte 7 is 0xff, which is not UTF-8 there"),
])  # fmt: skip
def test_what_is_refused_says_where(body: bytes, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_json(body)


def test_other_threads_run_while_a_large_text_is_read() -> None:
    """They may between two calls; json.loads is a few, the longest of which reads all."""
    body = json.dumps([{"a": [number, "text"]} for number in range(5_000)]).encode()
    calls = {}
    for reader in (json.loads, read_json):
        counted = itertools.count()
        sys.setprofile(lambda frame, event, argument, counted=counted: next(counted))
        reader(body)
        sys.setprofile(None)
        calls[reader] = next(counted)
    assert calls[json.loads] < 1_000
    assert calls[read_json] > 5_000 * 4


@given(VALUES, st.integers(13, 60))
def test_what_this_program_wrote_is_read_as_it_was(value: Any, window: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_reading, "AT_ONCE", 0)
        patch.setattr(json_reading, "LARGEST_PIECE", window)
        text = json.dumps(value)
        assert repr(read_json(text.encode(), trusted=True)) == repr(value)
        for damaged in (text[:-1], text + "]"):
            assert read(partial(read_json, trusted=True), damaged) == read(json.loads, damaged)


def test_what_this_program_wrote_is_read_piece_by_piece() -> None:
    """Not value by value: there may be millions."""
    rows = [{"token": number, "bytes": [1, 2], "top": [{"id": 1, "logprob": -0.5}]} for number in range(20_000)]
    text = json.dumps({"result": rows, "deep": [[[]]] * 10}).encode()
    counted = itertools.count()
    sys.setprofile(lambda frame, event, argument: next(counted))
    value = read_json(text, trusted=True)
    sys.setprofile(None)
    assert value["result"] == rows
    assert len(text) // 65536 < next(counted) < 20_000 * 10, "there are 180,000 values"


def test_a_large_body_is_put_together_beside_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    beside: list[str] = []

    async def in_thread(work: Any, *args: Any) -> Any:
        beside.append(work.__name__)
        return work(*args)

    async def read_chunks(*chunks: bytes) -> Any:
        messages = [{"type": "http.request", "body": chunk, "more_body": True} for chunk in chunks]
        coming = iter([*messages, {"type": "http.request"}])

        async def receive() -> Any:
            return next(coming)

        request = json_bodies.JsonRequest({"type": "http", "method": "POST", "headers": []}, receive)
        await request.body()  # as FastAPI does
        return await request.json()

    monkeypatch.setattr(json_bodies.asyncio, "to_thread", in_thread)
    assert asyncio.run(read_chunks(b"[1", b"]")) == [1]
    assert beside == []
    assert asyncio.run(read_chunks(b'"', b"x" * AT_ONCE, b'"')) == "x" * AT_ONCE
    assert beside == ["join", "read_json"]


def test_a_large_body_is_read_beside_the_event_loop(demo_server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[str] = []

    def noted(data: bytes) -> Any:
        threads.append(threading.current_thread().name)
        return read_json(data)

    monkeypatch.setattr(json_bodies, "read_json", noted)
    for text in ("x", "x" * AT_ONCE):
        assert post(demo_server, "show", {"model": "demo", "unknown": text}).status_code == 200
    assert threads[0] == "server"
    assert threads[1].startswith("server_")


@pytest.mark.parametrize(("path", "body", "message"), [
    ("/api/embed", {"input": ["x"] * (MOST_TEXTS + 1)}, f"input: one request has {MOST_TEXTS} texts at most"),
    ("/v1/embeddings", {"input": ["x"] * (MOST_TEXTS + 1)}, f"input: one request has {MOST_TEXTS} texts at most"),
    ("/rerank", {"query": "x", "documents": ["x"] * (MOST_TEXTS + 1)}, f"documents: one request has {MOST_TEXTS} "),
    ("/v1/completions", {"prompt": "x", "logit_bias": {str(token): 1 for token in range(MOST_BIASES + 1)}},
     f"logit_bias: it has {MOST_BIASES} tokens at most, got {MOST_BIASES + 1}"),
    *((path, {name: [{"role": "user", "content": "x"}] * (MOST_MESSAGES + 1), "max_tokens": 1}, f" {MOST_MESSAGES} ")
      for path, name in CONVERSATIONS.items()),
    ("/api/show", {"a": [[]] * MOST_VALUES}, f"the JSON has more than {MOST_VALUES} values"),
])  # fmt: skip
def test_how_much_one_request_may_have(demo_server: str, path: str, body: dict[str, Any], message: str) -> None:
    refused = httpx.post(f"{demo_server}{path}", json={"model": "demo"} | body, timeout=50)
    assert refused.status_code == 400
    assert message in refused.text


def test_long_lists_are_written_as_json_writes_them_and_sent_piece_by_piece() -> None:
    numbers = list(range(100_000))
    body = {"model": "a", "rows": [np.arange(3, dtype=np.float32)] * 50, "ids": [*numbers], "empty": [], "n": 1}
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def answer() -> None:
        await (await large_response(body))({"type": "http"}, None, send)  # type: ignore[arg-type]  # it reads nothing

    asyncio.run(answer())
    pieces = [message["body"] for message in sent[1:]]
    whole = b"".join(pieces)
    assert json.loads(whole) == body | {"rows": [[0.0, 1.0, 2.0]] * 50, "ids": numbers}
    assert dict(sent[0]["headers"])[b"content-length"] == str(len(whole)).encode()
    assert len(pieces) > 2
    assert max(map(len, pieces)) <= SENT_AT_ONCE
    assert body["ids"] == [], "millions of ids are freed slice by slice"
