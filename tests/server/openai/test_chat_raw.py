"""Chat completions byte by byte, without OpenAI's client."""

from __future__ import annotations

import base64
import io
import json
import time
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from tests.server.running import engine_of
from tests.support.engine_thread import held, held_in

ASK = {"model": "demo", "messages": [{"role": "user", "content": "One day"}], "max_tokens": 8, "temperature": 0}


def post(address: str, body: Any, path: str = "/v1/chat/completions") -> httpx.Response:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return httpx.post(address + path, content=content, headers={"content-type": "application/json"}, timeout=120)


def events(response: httpx.Response) -> list[Any]:
    """The objects of a stream, which has to end with [DONE]."""
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    *lines, last, end = response.text.split("\n\n")
    assert (last, end) == ("data: [DONE]", "")
    assert all(line.startswith("data: ") and "\n" not in line for line in lines)
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def endless(address: str) -> dict[str, int]:
    """A logit_bias with which the demo model never ends."""
    body = {"model": "demo", "content": "<|end_of_text|><|eot_id|>"}
    ids = post(address, body, "/tokenize").json()["tokens"]
    assert len(ids) == 2
    return dict.fromkeys(map(str, ids), -100)


def test_stream_says_what_the_whole_answer_says(demo_server: str) -> None:
    whole = post(demo_server, ASK).json()
    found = events(post(demo_server, ASK | {"stream": True, "stream_options": {"include_usage": True}}))
    *chunks, last = found
    assert (
        "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)
        == (whole["choices"][0]["message"]["content"])
    )
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None] * (len(chunks) - 1) + ["length"]
    assert chunks[-1]["choices"][0]["delta"] == {}  # who stops at the reason has read everything
    assert len({chunk["id"] for chunk in found}) == 1
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"] == 8
    assert last["usage"]["prompt_tokens"] == whole["usage"]["prompt_tokens"]
    assert last["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
    assert all(chunk["usage"] is None for chunk in chunks)


def test_answers_side_by_side_are_those_of_their_seeds(demo_server: str) -> None:
    ask = ASK | {"temperature": 1, "seed": 5}
    alone = [post(demo_server, ask | {"seed": 5 + i}).json()["choices"][0]["message"]["content"] for i in range(3)]
    together = post(demo_server, ask | {"n": 3}).json()
    assert [choice["message"]["content"] for choice in together["choices"]] == alone
    texts = ["", "", ""]
    for chunk in events(post(demo_server, ask | {"n": 3, "stream": True})):
        for choice in chunk["choices"]:
            texts[choice["index"]] += choice["delta"].get("content", "")
    assert texts == alone
    assert together["usage"]["completion_tokens"] == 24


def test_log_probabilities_have_texts_and_bytes(demo_server: str) -> None:
    ask = ASK | {"logprobs": True, "top_logprobs": 2}
    whole = post(demo_server, ask).json()["choices"][0]
    entries = whole["logprobs"]["content"]
    assert b"".join(bytes(entry["bytes"]) for entry in entries).decode() == whole["message"]["content"]
    for entry in entries:
        assert entry["top_logprobs"][0]["token"] == entry["token"]  # the temperature is 0
        assert entry["top_logprobs"][0]["logprob"] == entry["logprob"] <= 0
    streamed = [
        entry
        for chunk in events(post(demo_server, ask | {"stream": True}))
        for choice in chunk["choices"]
        for entry in (choice["logprobs"] or {"content": []})["content"]
    ]
    assert [entry["token"] for entry in streamed] == [entry["token"] for entry in entries]


def test_bias_bans_and_stop_ends(demo_server: str) -> None:
    plain = post(demo_server, ASK | {"logprobs": True}).json()["choices"][0]
    first = plain["logprobs"]["content"][0]["token"]
    ids = post(demo_server, {"model": "demo", "content": first, "add_special": False}, "/tokenize").json()["tokens"]
    banned = post(demo_server, ASK | {"logit_bias": {str(ids[0]): -100}}).json()["choices"][0]
    assert not banned["message"]["content"].startswith(first)
    word = plain["message"]["content"].split()[2]
    stopped = post(demo_server, ASK | {"stop": [word]}).json()["choices"][0]
    assert stopped["finish_reason"] == "stop"
    assert stopped["message"]["content"] == plain["message"]["content"].partition(word)[0]


@pytest.mark.parametrize(
    ("change", "status", "param", "code", "words"),
    [
        ({"model": "nowhere"}, 404, "model", "model_not_found", "'nowhere' not found"),
        ({"model": "../etc"}, 400, "model", None, "is a name"),
        ({"messages": []}, 400, "messages", None, "one message at least"),
        ({"messages": "Hello"}, 400, "messages", None, "valid list"),
        ({"messages": [{"content": "x"}]}, 400, "messages.0.role", None, "required"),
        ({"temperature": "warm"}, 400, "temperature", None, "valid number"),
        ({"temperature": -1}, 400, "temperature", None, ">= 0"),
        ({"n": 0}, 400, "n", None, "greater than or equal to 1"),
        ({"top_logprobs": 3}, 400, "top_logprobs", None, "needs logprobs"),
        ({"logit_bias": {"fox": 1}}, 400, "logit_bias", None, "token ids"),
        ({"response_format": {"type": "json_schema"}}, 400, "response_format.json_schema.schema", None, "schema"),
        ({"tool_choice": "required"}, 400, "tool_choice", None, "no tools"),
        ({"reasoning_effort": "high"}, 400, "reasoning_effort", None, "reason"),
        ({"messages": [{"role": "user", "content": "x " * 3000}]}, 400, None, "context_length_exceeded", "tokens"),
    ],
)
def test_errors_say_which_field_is_wrong(
    demo_server: str, change: dict[str, Any], status: int, param: str | None, code: str | None, words: str
) -> None:
    for stream in (False, True):
        response = post(demo_server, ASK | change | {"stream": stream})
        assert response.status_code == status, response.text
        error = response.json()["error"]
        assert words in error["message"]
        assert (error["type"], error["param"], error["code"]) == ("invalid_request_error", param, code)


def test_what_is_no_json_is_refused(demo_server: str) -> None:
    for body in (b"{", b"", b"[]", b'"x"', b"\xff\xfe"):
        response = post(demo_server, body)
        assert response.status_code == 400, (body, response.text)
        assert response.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "content": "x", "images": ["/etc/hostname"]},
        {"role": "user", "content": [{"type": "image", "image": "/etc/hostname"}]},
        {"role": "user", "content": [{"type": "image", "path": "/etc/hostname"}]},
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "/etc/hostname"}}]},
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "file:///etc/hostname"}}]},
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://127.0.0.1/a.png"}}]},
    ],
)
def test_no_message_opens_a_file_or_an_address(demo_server: str, message: dict[str, Any]) -> None:
    response = post(demo_server, ASK | {"model": "demo-vision", "messages": [message]})
    assert response.status_code == 400
    words = response.json()["error"]["message"]
    assert any(said in words for said in ("no field", "expected", "not fetched")), words


def test_lone_surrogates_do_no_harm(demo_server: str) -> None:
    body = b'{"model":"demo","max_tokens":2,"messages":[{"role":"user","content":"\\ud800"}]}'
    assert post(demo_server, body).status_code in (200, 400)


def test_client_that_leaves_frees_its_slot(demo_server: str, demo_app: FastAPI) -> None:
    ask = ASK | {"max_tokens": 900, "temperature": 1, "logit_bias": endless(demo_server)}
    engine, url = engine_of(demo_app), demo_server + "/v1/chat/completions"
    with (
        held_in(engine._core.queue, "sweep", calls=20) as is_held,
        httpx.stream("POST", url, json=ask | {"stream": True}) as response,
    ):
        lines = response.iter_lines()  # dropped, it would close the connection
        next(lines)
        is_held()
        assert httpx.get(demo_server + "/slots?model=demo").json()
    assert _idle(demo_server)
    with held(engine), pytest.raises(httpx.ReadTimeout):
        httpx.post(url, json=ask | {"n": 16}, timeout=0.2)
    assert _idle(demo_server)


def _idle(address: str, seconds: float = 60) -> bool:
    """Whether no request is left, within a time that is far more than a step takes."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if not httpx.get(address + "/slots?model=demo").json():
            return True
    return False


def test_image_of_a_data_url_is_seen(demo_server: str) -> None:
    image = pytest.importorskip("PIL.Image").new("RGB", (64, 64), "white")
    pytest.importorskip("PIL.ImageDraw").Draw(image).ellipse((20, 20, 44, 44), fill="red")
    file = io.BytesIO()
    image.save(file, "PNG")
    url = "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
    parts = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "What colour is the circle?"}]
    ask = ASK | {"model": "demo-vision", "messages": [{"role": "user", "content": parts}]}
    seen = post(demo_server, ask).json()
    assert seen["choices"][0]["message"]["content"] == "red"
    blind = post(demo_server, ask | {"messages": [{"role": "user", "content": parts[1:]}]}).json()
    assert seen["usage"]["prompt_tokens"] > blind["usage"]["prompt_tokens"]
    items = [
        {"role": "user", "content": [{"type": "input_image", "image_url": url}, parts[1] | {"type": "input_text"}]}
    ]
    body = {"model": "demo-vision", "input": items, "max_output_tokens": 8, "temperature": 0}
    found = post(demo_server, body, "/v1/responses").json()
    assert found["output"][0]["content"][0]["text"] == seen["choices"][0]["message"]["content"]
    assert post(demo_server, ask | {"model": "demo"}).status_code == 400  # which reads text only
