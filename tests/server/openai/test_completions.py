"""Text completions and embeddings: raw, and by OpenAI's published client."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import pytest

from tests.server.openai.test_chat_raw import events, post

ASK = {"model": "demo", "prompt": "Once upon a time", "max_tokens": 6, "temperature": 0}


def complete(address: str, **change: Any) -> dict[str, Any]:
    response = post(address, ASK | change, "/v1/completions")
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


def ids_of(address: str, text: str) -> list[int]:
    body = {"model": "demo", "content": text, "add_special": True}
    found: list[int] = post(address, body, "/tokenize").json()["tokens"]
    return found


def test_prompts_of_text_and_ids_are_the_same(demo_server: str) -> None:
    ids = ids_of(demo_server, "Once upon a time")
    text = complete(demo_server)
    assert complete(demo_server, prompt=ids)["choices"] == text["choices"]
    several = complete(demo_server, prompt=["Once upon a time", "One day"])
    assert several["choices"][0] == text["choices"][0]
    assert several["choices"][1]["index"] == 1
    assert complete(demo_server, prompt=[ids, ids])["choices"][1]["text"] == text["choices"][0]["text"]
    assert several["usage"]["prompt_tokens"] == len(ids) + len(ids_of(demo_server, "One day"))


def test_stream_of_several_prompts_and_answers(demo_server: str) -> None:
    change = {"prompt": ["Once upon a time", "One day"], "n": 2, "seed": 3, "temperature": 1}
    whole = complete(demo_server, **change)
    found = events(
        post(demo_server, ASK | change | {"stream": True, "stream_options": {"include_usage": True}}, "/v1/completions")
    )
    texts = [""] * 4
    for chunk in found[:-1]:
        for choice in chunk["choices"]:
            texts[choice["index"]] += choice["text"]
    assert texts == [choice["text"] for choice in whole["choices"]]
    for name in ("prompt_tokens", "completion_tokens"):
        assert found[-1]["usage"][name] == whole["usage"][name]


def test_best_of_returns_the_most_probable(demo_server: str) -> None:
    change = {"prompt": "One day", "seed": 1, "temperature": 2, "logprobs": 0}
    answers = complete(demo_server, **change, n=4)
    best = complete(demo_server, **change, best_of=4)
    sums = [sum(choice["logprobs"]["token_logprobs"]) for choice in answers["choices"]]
    assert best["choices"][0]["text"] == answers["choices"][sums.index(max(sums))]["text"]
    assert best["usage"]["completion_tokens"] == answers["usage"]["completion_tokens"]


def test_echo_has_log_probabilities_of_the_prompt(demo_server: str) -> None:
    ids = ids_of(demo_server, "Once upon a time")
    for prompt in ("Once upon a time", ids):
        plain = complete(demo_server, prompt=prompt, logprobs=2)["choices"][0]
        whole = complete(demo_server, prompt=prompt, logprobs=2, echo=True)["choices"][0]
        assert whole["text"] == "Once upon a time" + plain["text"]
        told = whole["logprobs"]
        n = len(told["tokens"]) - 6
        assert told["token_logprobs"][n:] == pytest.approx(plain["logprobs"]["token_logprobs"], abs=1e-3)
        assert all(-50 < value < 0 for value in told["token_logprobs"] if value is not None)
        for token, offset in zip(told["tokens"], told["text_offset"], strict=True):
            if prompt is not ids:
                assert whole["text"][offset : offset + len(token)] == token
        scored = complete(demo_server, prompt=prompt, logprobs=2, echo=True, max_tokens=0)["choices"][0]
        assert scored["logprobs"]["token_logprobs"] == pytest.approx(told["token_logprobs"][:n], abs=1e-3)
        assert scored["text"] == "Once upon a time"


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"prompt": []}, "prompt"),
        ({"prompt": [1.5]}, "prompt"),
        ({"n": 3, "best_of": 2}, "best_of"),
        ({"n": 1, "best_of": 2, "stream": True}, "best_of"),
        ({"suffix": "the end"}, "suffix"),
        ({"prompt": ["x"] * 300, "n": 2}, "prompt"),
    ],
)
def test_errors_name_the_field(demo_server: str, change: dict[str, Any], param: str) -> None:
    response = post(demo_server, ASK | change, "/v1/completions")
    assert response.status_code == 400
    assert response.json()["error"]["param"].startswith(param)


def test_embeddings_as_numbers_and_base64(demo_server: str) -> None:
    body = {"model": "demo", "input": ["One day", "a fox"]}
    numbers = post(demo_server, body, "/v1/embeddings").json()
    coded = post(demo_server, body | {"encoding_format": "base64"}, "/v1/embeddings").json()
    vectors = np.array([row["embedding"] for row in numbers["data"]], dtype=np.float32)
    decoded = [np.frombuffer(base64.b64decode(row["embedding"]), dtype="<f4") for row in coded["data"]]
    np.testing.assert_array_equal(vectors, decoded)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-5)
    ids = ids_of(demo_server, "One day")
    by_ids = post(demo_server, body | {"input": ids}, "/v1/embeddings").json()
    np.testing.assert_allclose(by_ids["data"][0]["embedding"], vectors[0], atol=1e-3)
    assert by_ids["usage"]["prompt_tokens"] == len(ids)
    short = post(demo_server, body | {"dimensions": 8}, "/v1/embeddings").json()["data"][0]["embedding"]
    np.testing.assert_allclose(short, vectors[0, :8] / np.linalg.norm(vectors[0, :8]), rtol=1e-4)


@pytest.mark.parametrize("path", ["/v1/embeddings", "/api/embed"])
@pytest.mark.parametrize(("name", "told"), [("prompt_name", "has no prompts"), ("task", "has no adapters")])
def test_purposes_of_embeddings_reach_the_engine(path: str, name: str, told: str, demo_server: str) -> None:
    answer = post(demo_server, {"model": "demo", "input": "a", name: "query"}, path)
    assert answer.status_code == 400
    assert told in answer.text
    assert path == "/api/embed" or answer.json()["error"]["param"] == name


def test_published_client(demo_server: str) -> None:
    openai = pytest.importorskip("openai", reason="extra: clients")
    with openai.OpenAI(base_url=demo_server + "/v1", api_key="any", max_retries=0) as client:
        whole = client.completions.create(**ASK, logprobs=1)
        streamed = list(client.completions.create(**ASK, stream=True))
        assert "".join(chunk.choices[0].text for chunk in streamed) == whole.choices[0].text
        assert len(whole.choices[0].logprobs.tokens) == 6
        vectors = client.embeddings.create(model="demo", input=["One day", "a fox"])
        assert len(vectors.data) == 2
        assert abs(sum(x * x for x in vectors.data[0].embedding) - 1) < 1e-4
