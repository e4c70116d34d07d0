"""Embeddings of texts with images: objects as in Jina's API, and conversations as in vLLM's."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator

import numpy as np
import pytest

from ollama_engine.convert import convert_model
from ollama_engine.server.app import create_app
from ollama_engine.server.settings import ServerSettings
from tests.convert.folders import write_json
from tests.models.test_vl_embedding import named
from tests.models.vision import harness
from tests.server.openai.test_chat_raw import post
from tests.server.running import running

TEMPLATE = (
    "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}{% for c in m.content %}"
    "{% if 'image' in c.type %}<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ c.text }}{% endif %}{% endfor %}"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}: {% endif %}"
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A tiny Qwen3-VL with a chat template."""
    folder = tmp_path_factory.mktemp("vl")
    case = next(case for case in harness.cases() if case.name == "qwen3vl")
    golden = harness.load(case)
    source = case.write(folder / "vl", golden.config, case.weights(golden.shapes))
    write_json(source / "tokenizer_config.json", {"chat_template": TEMPLATE})
    convert_model(source, folder / "vl.gguf", "f32")
    files = (("vl", folder / "vl.gguf"), ("ranks", named("Qwen3-VL-Reranker-2B", folder)))
    settings = ServerSettings(context_length=512, shutdown_timeout=5, models=folder, files=files)
    with running(create_app(settings)) as address:
        yield address


def picture_of(colour: str) -> str:
    """A data URL."""
    image = pytest.importorskip("PIL.Image").new("RGB", (64, 64), colour)
    file = io.BytesIO()
    image.save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


@pytest.mark.parametrize("path", ["/v1/embeddings", "/api/embed"])
def test_images_are_embedded(path: str, server: str) -> None:
    """As in Jina's API: objects with a text, an image or both, beside texts."""
    red, blue = picture_of("red"), picture_of("blue")
    given = ["a", {"text": "a"}, {"image": red}, {"image": red.partition(",")[2]}, {"image": blue, "text": "a"}]
    answer = post(server, {"model": "vl", "input": given}, path).json()
    rows = answer["embeddings"] if path == "/api/embed" else [row["embedding"] for row in answer["data"]]
    vectors = np.array(rows, np.float32)
    np.testing.assert_allclose(vectors[[0, 2]], vectors[[1, 3]], atol=1e-5)
    assert not np.allclose(vectors[2], vectors[4], atol=1e-3)
    (alone,) = post(server, {"model": "vl", "input": {"image": red}}, "/api/embed").json()["embeddings"]
    np.testing.assert_allclose(alone, vectors[2], atol=1e-5)
    for wrong, told in (
        ({}, "expected an object with"),
        ({"image": "/etc/hostname"}, "base64"),
        ({"image": "aaaa"}, "image"),
        ({"text": "a", "image_url": {"url": red}}, "image_url: an image is in"),
        ({"text": "a", "images": [red]}, "images: an image is in"),
    ):
        refused = post(server, {"model": "vl", "input": ["a", wrong]}, path)
        assert (refused.status_code, "[1]" in refused.text) == (400, True), refused.text
        assert told in refused.text


def test_a_conversation_is_embedded(server: str) -> None:
    """`messages` as in vLLM's API: the model's template writes them, and nothing begins an answer unless asked."""
    content = [{"type": "image_url", "image_url": {"url": picture_of("red")}}, {"type": "text", "text": "what is it?"}]
    body = {"model": "vl", "messages": [{"role": "user", "content": content}]}
    plain, open_ended = (post(server, body | {"add_generation_prompt": flag}, "/v1/embeddings").json()
                         for flag in (False, True))  # fmt: skip
    assert len(plain["data"]) == 1
    assert plain["usage"]["prompt_tokens"] < open_ended["usage"]["prompt_tokens"]
    assert not np.allclose(plain["data"][0]["embedding"], open_ended["data"][0]["embedding"], atol=1e-3)
    for wrong, param in (
        ({"input": "a"}, "input"),
        ({"messages": None}, "input"),
        ({"prompt_name": "query"}, "prompt_name"),
        ({"input": "a", "messages": None, "add_generation_prompt": True}, "add_generation_prompt"),
        ({"input": "a", "messages": None, "continue_final_message": True}, "continue_final_message"),
    ):
        refused = post(server, body | wrong, "/v1/embeddings")
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)


def test_documents_with_images_are_ranked(server: str) -> None:
    documents = ["a", {"text": "a"}, {"image": picture_of("red")}, {"image": picture_of("blue"), "text": "b"}]
    answer = post(server, {"model": "ranks", "query": "what is red?", "documents": documents}, "/v1/rerank").json()
    scores = {row["index"]: row["relevance_score"] for row in answer["results"]}
    assert scores[0] == pytest.approx(scores[1])
    assert len({round(score, 6) for score in scores.values()}) == 3
    for wrong, told in (({}, ": expected an object with"), ({"text": "a", "images": ["b"]}, ".images: an image is in")):
        refused = post(server, {"model": "ranks", "query": "a", "documents": ["a", wrong]}, "/v1/rerank")
        assert (refused.status_code, f"documents[1]{told}" in refused.text) == (400, True)
