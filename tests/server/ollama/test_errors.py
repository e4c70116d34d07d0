"""Errors of Ollama's API: their status and their words."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.server.ollama.asking import error_of, post

HELLO = [{"role": "user", "content": "hi"}]
DEEP = b'{"model": "demo", "messages": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"

REFUSED: list[tuple[str, Any, int, str]] = [
    ("generate", b"", 400, "missing request body"),
    ("generate", b"{", 400, "invalid JSON: "),
    ("generate", b"[]", 400, "the body should be a JSON object"),
    ("generate", b"null", 400, "the body should be a JSON object"),
    ("generate", b'"x"', 400, "the body should be a JSON object"),
    ("generate", b"\xff\xfe", 400, ""),
    ("chat", DEEP, 400, ""),
    ("generate", {}, 400, "model is required"),
    ("chat", {"model": " "}, 400, "model is required"),
    ("embed", {"model": ""}, 400, "model is required"),
    ("generate", {"model": "nope"}, 404, "model 'nope' not found"),
    ("chat", {"model": "nope", "messages": HELLO}, 404, "model 'nope' not found"),
    ("embed", {"model": "nope", "input": "x"}, 404, "model 'nope' not found"),
    ("embeddings", {"model": "nope", "prompt": "x"}, 404, "model 'nope' not found"),
    ("generate", {"model": "../../etc/passwd", "prompt": "x"}, 400, "model is a name such as"),
    ("generate", {"model": "a/../b", "prompt": "x"}, 400, "model is a name such as"),
    ("generate", {"model": "/etc/passwd", "prompt": "x"}, 400, "model is a name such as"),
    ("generate", {"model": "modèle", "prompt": "x"}, 400, "model is a name such as"),
    ("generate", {"model": 5, "prompt": "x"}, 400, "model: Input should be a valid string"),
    ("generate", {"model": "demo", "prompt": ["x"]}, 400, "prompt: Input should be a valid string"),
    ("generate", {"model": "demo", "prompt": "x", "stream": "no"}, 400, "stream: Input should be a valid boolean"),
    ("generate", {"model": "demo", "prompt": "x", "context": ["a"]}, 400, "context.0: "),
    ("generate", {"model": "demo", "prompt": "x", "context": [10**9]}, 400, ""),
    ("generate", {"model": "demo", "prompt": "x", "top_logprobs": 21}, 400, "top_logprobs must be between 0 and 20"),
    ("chat", {"model": "demo", "messages": HELLO, "top_logprobs": -1}, 400, "top_logprobs must be between 0 and 20"),
    ("generate", {"model": "demo", "prompt": "x", "keep_alive": "soon"}, 400, "keep_alive is a number of seconds"),
    ("generate", {"model": "demo", "prompt": "x", "format": "yaml"}, 400,
     "format: Input should be 'json' or '' or a valid dictionary"),
    ("generate", {"model": "demo", "prompt": "x", "format": {"type": "no such"}}, 400, ""),
    ("generate", {"model": "demo", "prompt": "x", "think": "a lot"}, 400,
     "think: Input should be a valid boolean or 'low', 'medium', 'high' or 'max'"),
    ("generate", {"model": "demo", "prompt": "x", "images": ["%%%"]}, 400, "images[0]: illegal base64 data"),
    ("generate", {"model": "demo", "prompt": "x", "images": ["AAAA"]}, 400, ""),
    ("generate", {"model": "demo-vision", "prompt": "x", "images": ["AAAA"]}, 400, ""),
    ("generate", {"model": "demo-vision", "prompt": "x", "images": ["/etc/passwd"]}, 400, ""),
    ("chat", {"model": "demo-vision", "messages": [{"role": "user", "content": "", "images": ["../x"]}]}, 400,
     "images[0]: illegal base64 data"),
    ("chat", {"model": "demo", "messages": "hi"}, 400, "messages: Input should be a valid list"),
    ("chat", {"model": "demo", "messages": [{}]}, 400, "messages.0.role: Field required"),
    ("chat", {"model": "demo", "messages": [{"role": "user", "content": 5}]}, 400, "messages.0.content: "),
    ("chat", {"model": "demo", "messages": HELLO, "keep_alive": []}, 400,
     "keep_alive: Input should be a valid number or a valid string"),
    ("chat", {"model": "demo", "messages": [{"role": "user", "content": [{"type": "text"}]}]}, 400,
     "messages.0.content: "),
    ("chat", {"model": "demo", "messages": HELLO, "tools": [{"type": "function"}]}, 400, "tools"),
    ("chat", {"model": "demo", "messages": [{"role": "user", "content": "\ud800"}]}, 400, "character "),
    ("embed", {"model": "demo", "input": [1]}, 400, "input"),
    ("embed", {"model": "demo", "input": 5}, 400,
     "input: Input should be a valid string or a valid dictionary or a valid list"),
    ("embed", {"model": "demo", "input": "x", "dimensions": -1}, 400, "dimensions must not be negative"),
    ("embed", {"model": "demo", "input": "x", "dimensions": 10**6}, 400, "dimensions"),
]  # fmt: skip


@pytest.mark.parametrize(("path", "body", "status", "told"), REFUSED, ids=lambda value: str(value)[:70])
def test_what_is_refused(demo_server: str, path: str, body: Any, status: int, told: str) -> None:
    found = error_of(post(demo_server, path, body))
    assert found[0] == status, found
    assert found[1].startswith(told), found
    assert found[1]


WRONG_OPTIONS = [
    ({"num_ctx": "many"}, 'option "num_ctx" must be of type integer'),
    ({"seed": True}, 'option "seed" must be of type integer'),
    ({"temperature": "hot"}, 'option "temperature" must be of type float32'),
    ({"use_mmap": 1}, 'option "use_mmap" must be of type boolean'),
    ({"stop": 5}, 'option "stop" must be of type array'),
    ({"stop": [5]}, 'option "stop" must be of an array of strings'),
]


@pytest.mark.parametrize(("options", "told"), WRONG_OPTIONS, ids=str)
@pytest.mark.parametrize("path", ["generate", "chat", "embed"])
def test_options_of_wrong_types(demo_server: str, path: str, options: dict[str, Any], told: str) -> None:
    assert error_of(post(demo_server, path, {"model": "demo", "options": options})) == (400, told)


def test_unknown_paths_and_methods(demo_server: str) -> None:
    assert error_of(httpx.get(f"{demo_server}/api/nothing"))[0] == 404
    assert error_of(httpx.get(f"{demo_server}/api/generate"))[0] == 405
