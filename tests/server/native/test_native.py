"""The engine's own routes: ids and texts, prompts of conversations, and what they show of a running server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from ollama_engine import Engine, demo
from ollama_engine.server.app import create_app
from ollama_engine.server.settings import ServerSettings
from tests.models import encoders
from tests.server.openai.test_chat_raw import endless, post
from tests.server.running import engine_of, running
from tests.support.engine_thread import held_in

CHAT = [{"role": "user", "content": "One day"}]


@pytest.fixture(scope="module")
def engine() -> Any:
    with Engine(demo.path(), num_ctx=64) as made:
        yield made


def ask(address: str, path: str, **body: Any) -> Any:
    response = post(address, {"model": "demo"} | body, path)
    assert response.status_code == 200, response.text
    return response.json()


@pytest.mark.parametrize("text", ["One day, a fox", "", "Füchse 🦊 \u2603", "<s>x"])
def test_tokenize_and_back(demo_server: str, engine: Engine, text: str) -> None:
    for special in (False, True):
        ids = ask(demo_server, "/tokenize", content=text, add_special=special)["tokens"]
        assert ids == engine.tokenize(text, add_special=special)
    literal = ask(demo_server, "/tokenize", content=text, parse_special=False)["tokens"]
    assert literal == engine.tokenize(text, add_special=False, parse_special=False)
    assert ask(demo_server, "/detokenize", tokens=literal)["content"] == engine.detokenize(literal) == text


def test_pieces_are_texts_or_bytes(demo_server: str, engine: Engine) -> None:
    found = ask(demo_server, "/tokenize", content="a 🦊", with_pieces=True)["tokens"]
    whole = b"".join(
        piece["piece"].encode() if isinstance(piece["piece"], str) else bytes(piece["piece"]) for piece in found
    )
    assert whole.decode() == "a 🦊"
    assert any(isinstance(piece["piece"], list) for piece in found)
    assert [piece["id"] for piece in found] == engine.tokenize("a 🦊", add_special=False)


def test_template_is_the_engines(demo_server: str, engine: Engine) -> None:
    for more in (True, False):
        segments = engine.apply_template(CHAT, add_generation_prompt=more)
        prompt = ask(demo_server, "/apply-template", messages=CHAT, add_generation_prompt=more)["prompt"]
        assert prompt == "".join(getattr(segment, "text") for segment in segments)  # noqa: B009 (texts, all of them)


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/tokenize", {}, 400),
        ("/tokenize", {"content": 5}, 400),
        ("/tokenize", {"content": "x", "model": "nowhere"}, 404),
        ("/detokenize", {"tokens": ["a"]}, 400),
        ("/detokenize", {"tokens": [2**31 - 1]}, 400),
        ("/detokenize", {"tokens": [-1]}, 400),
        ("/apply-template", {"messages": []}, 400),
        ("/rerank", {"query": "a", "documents": []}, 400),
        ("/rerank", {"query": "a", "documents": [{"title": "x"}]}, 400),
    ],
)
def test_errors(demo_server: str, path: str, body: dict[str, Any], status: int) -> None:
    response = post(demo_server, {"model": "demo"} | body, path)
    assert response.status_code == status, response.text
    assert response.json()["error"]["message"]


def test_bodies_need_no_header(demo_server: str) -> None:
    response = httpx.post(demo_server + "/tokenize", content=json.dumps({"model": "demo", "content": "a fox"}))
    assert response.json()["tokens"]


def test_health_slots_and_trace(demo_server: str, demo_app: FastAPI) -> None:
    assert httpx.get(demo_server + "/health").json() == {"status": "ok"}
    ask(demo_server, "/v1/chat/completions", messages=CHAT, max_tokens=2)
    body = {"model": "demo", "prompt": "One day", "max_tokens": 900, "stream": True, "logit_bias": endless(demo_server)}
    with (
        held_in(engine_of(demo_app)._core.queue, "sweep", calls=20) as is_held,
        httpx.stream("POST", demo_server + "/v1/completions", json=body, timeout=120) as response,
    ):
        lines = response.iter_lines()  # dropped, it would close the connection
        next(lines)
        is_held()
        slots = httpx.get(demo_server + "/slots?model=demo").json()
    slot = next(slot for slot in slots if slot["is_processing"])
    assert slot["model"] == "demo:latest"
    assert slot["n_ctx"] == 1024
    assert slot["prompt_tokens"] > 0
    timeline = httpx.get(demo_server + "/trace?model=demo").json()
    assert timeline["traceEvents"]
    assert httpx.get(demo_server + "/trace?model=nowhere").status_code == 404


def test_metrics_are_what_prometheus_reads(demo_server: str) -> None:
    parser = pytest.importorskip("prometheus_client.parser")

    def samples() -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
        text = httpx.get(demo_server + "/metrics").text
        families = parser.text_string_to_metric_families(text)
        return {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in families
            for sample in family.samples
        }

    ask(demo_server, "/v1/completions", prompt="One day", max_tokens=0)
    before = samples()
    ask(demo_server, "/v1/completions", prompt="One day", max_tokens=7, temperature=0)
    after = samples()
    model = ("model", "demo:latest")
    tokens = ("ollama_engine_completion_tokens_total", (model,))
    assert after[tokens] - before[tokens] == 7
    ended = ("ollama_engine_requests_total", (("kind", "generation"), model, ("outcome", "length")))
    assert after[ended] - before[ended] == 1
    assert (
        after[("ollama_engine_step_seconds_bucket", (("le", "+Inf"), model))]
        == (after[("ollama_engine_step_seconds_count", (model,))])
    )
    cells = [after[("ollama_engine_kv_cells", (model, ("state", state)))] for state in ("used", "free")]
    assert sum(cells) >= 1024
    assert after[("ollama_engine_running", (model,))] == 0


def test_rerank_orders_by_the_models_scores(tmp_path: Path) -> None:
    path = encoders.converted(encoders.case("bert-ranker"), tmp_path)
    documents = ["the dog ran home", "once upon a time", "a fox"]
    with Engine(path) as made:
        scores = [float(score) for score in made.rank("a dog", documents)]
    order = sorted(range(3), key=lambda number: -scores[number])
    settings = ServerSettings(models=tmp_path / "store", files=(("ranker", Path(path)),))
    with running(create_app(settings)) as address:
        body = {"model": "ranker", "query": "a dog", "documents": documents}
        found = ask(address, "/rerank", **body)
        assert [row["index"] for row in found["results"]] == order
        told = [row["relevance_score"] for row in found["results"]]
        assert told == pytest.approx([scores[number] for number in order], rel=1e-3)
        assert found["usage"]["total_tokens"] > 3
        body["documents"] = [{"text": text} for text in documents]
        (best,) = ask(address, "/v1/rerank", **body, top_n=1, return_documents=True)["results"]
        assert best["document"]["text"] == documents[order[0]]
        assert post(address, {"model": "demo", "query": "a", "documents": ["b"]}, "/rerank").status_code == 400


def test_requests_are_steered_by_whoever_may_ask(tmp_path: Path) -> None:
    """A request of one client is looked at, moved and ended by another; both need a key."""
    settings = ServerSettings(models=tmp_path, api_keys=("one", "two"), shutdown_timeout=5)
    endless = {"model": "demo", "prompt": "One day", "raw": True, "format": {"type": "string", "minLength": 100_000},
               "options": {"num_predict": -1}}  # fmt: skip
    with running(create_app(settings)) as address:
        one, two = (httpx.Client(base_url=address, headers={"x-api-key": key}, timeout=60) for key in ("one", "two"))
        with one, two, one.stream("POST", "/api/generate", json=endless) as answer:
            lines = answer.iter_lines()
            next(lines)
            (slot,) = two.get("/slots").json()
            path = f"/slots/{slot['id']}"
            for refused in (httpx.delete(address + path), httpx.patch(address + path, json={"priority": 1})):
                assert refused.status_code == 401
            assert two.patch(path, json={"priority": 3}).json() == {
                "id": slot["id"],
                "model": "demo:latest",
                "priority": 3,
            }
            assert [row["priority"] for row in two.get("/slots").json()] == [3]
            assert two.get("/page/live").json()["models"][0]["requests"][0]["priority"] == 3
            assert two.patch(path, json={"priority": 1 << 40}).status_code == 400
            assert two.patch(path, json={}).status_code == 400
            gone = two.delete("/slots/999999", params={"model": "demo"})
            assert (gone.status_code, gone.json()["error"]["param"]) == (404, "request")
            assert two.delete(path).json() == {"id": slot["id"], "model": "demo:latest", "cancelled": True}
            *_, last = lines
            assert "cancelled" in json.loads(last)["error"]
            assert two.get("/slots").json() == []
