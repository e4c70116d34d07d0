"""Ollama's API of models in processes of their own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from ollama_engine.server.app import create_app
from ollama_engine.server.settings import ServerSettings
from tests.server.ollama.asking import ask, error_of, idle, leave, lines_of, post
from tests.server.running import running

pytestmark = pytest.mark.slow
GREEDY = {"temperature": 0, "num_predict": 8}
HELLO = [{"role": "user", "content": "Tell me of a fox."}]


@pytest.fixture(scope="module")
def isolated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    store = tmp_path_factory.mktemp("store")
    settings = ServerSettings(
        num_parallel=4, context_length=1024, shutdown_timeout=5, models=store, isolation="process"
    )
    with running(create_app(settings)) as address:
        yield address


@pytest.mark.parametrize(("path", "body"), [
    ("generate", {"prompt": "One day", "options": GREEDY}),
    ("generate", {"prompt": "One day", "context": [5, 6, 7], "options": GREEDY}),
    ("generate", {"prompt": "One day", "raw": True, "logprobs": True, "top_logprobs": 2, "options": GREEDY}),
    ("generate", {"prompt": "x", "template": "{{ .Prompt }}!", "_debug_render_only": True}),
    ("chat", {"messages": HELLO, "options": GREEDY, "format": {"enum": ["a", "b"]}}),
    ("embed", {"input": ["a", "b"]}),
], ids=str)  # fmt: skip
def test_answers_are_those_of_one_process(isolated: str, demo_server: str, path: str, body: dict[str, Any]) -> None:
    def told(address: str) -> dict[str, Any]:
        found = ask(address, path, **body)
        for entry in found.get("logprobs", ()):
            entry["logprob"] = round(entry["logprob"], 2)
            entry["top_logprobs"] = [other["token"] for other in entry["top_logprobs"]]
        changing = ("created_at", "embeddings")
        return {name: value for name, value in found.items() if name not in changing and "duration" not in name}

    assert told(isolated) == told(demo_server)


def test_errors_are_the_same(isolated: str) -> None:
    think = post(isolated, "chat", {"model": "demo", "messages": HELLO, "think": True})
    assert error_of(think) == (400, '"demo" does not support thinking')
    assert ask(isolated, "chat", messages=HELLO, think=False, options=GREEDY)["eval_count"] == 8
    beyond = post(isolated, "generate", {"model": "demo", "prompt": "x", "context": [10**9]})
    assert beyond.status_code == 400


def test_a_client_that_leaves_frees_its_slot(isolated: str) -> None:
    leave(isolated)
    assert idle(isolated)
    assert lines_of(isolated, "chat", messages=HELLO, options=GREEDY)[-1]["done"]
