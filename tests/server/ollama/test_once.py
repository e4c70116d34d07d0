"""A request of /api/generate renders its prompt once, and tokenizes it once: `context` comes with the answer."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from ollama_engine.runner.chat import prepared
from ollama_engine.runner.core import input_processor
from ollama_engine.server.app import create_app
from ollama_engine.server.isolation.called_model import CalledModel
from ollama_engine.server.settings import ServerSettings
from tests.server.ollama.asking import ask
from tests.server.running import running

STORY = {"prompt": "One day", "options": {"temperature": 0, "num_predict": 4}}


def counted(monkeypatch: pytest.MonkeyPatch, *functions: tuple[Any, str]) -> Counter[str]:
    """How often each of these functions is called from now on."""
    calls: Counter[str] = Counter()

    def counting(name: str, function: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            calls[name] += 1
            return function(*args, **kwargs)

        return call

    for owner, name in functions:
        monkeypatch.setattr(owner, name, counting(name, getattr(owner, name)))
    return calls


def test_in_this_process(demo_server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ask(demo_server, "generate")  # loaded
    calls = counted(monkeypatch, (prepared, "render_conversation"), (input_processor, "_segment_inputs"))
    found = ask(demo_server, "generate", **STORY)
    assert calls == {"render_conversation": 1, "_segment_inputs": 1}
    assert len(found["context"]) == found["prompt_eval_count"] + 4


def test_in_a_process_of_its_own(demo_server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = ask(demo_server, "generate", **STORY)["context"]
    with running(create_app(ServerSettings(isolation="process", shutdown_timeout=5))) as address:
        ask(address, "generate")
        calls = counted(monkeypatch, (CalledModel, "_call"), (CalledModel, "_stream"))
        assert ask(address, "generate", **STORY)["context"] == expected
        assert calls == {"_stream": 1}
