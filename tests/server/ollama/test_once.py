"""Nothing is done twice, and nothing crosses twice: prompts are rendered and tokenized where they are computed.

/api/generate gets `context` with the answer; the oldest messages of a long chat are dropped by the engine.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from ollama_engine.runner.chat import preparation
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
    calls = counted(monkeypatch, (preparation, "render_conversation"), (input_processor, "_segment_inputs"))
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


LONG = [{"role": "user", "content": f"{number} " * 100} for number in range(40)]


def test_each_set_of_messages_is_rendered_once(demo_server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ask(demo_server, "chat")  # loaded
    calls = counted(monkeypatch, (preparation, "render_conversation"), (input_processor, "_segment_inputs"))
    rendered: list[int] = []
    render = preparation.render_conversation
    monkeypatch.setattr(
        preparation,
        "render_conversation",
        lambda *args, **kwargs: rendered.append(len(args[1])) or render(*args, **kwargs),
    )
    assert 512 < ask(demo_server, "chat", messages=LONG, options=STORY["options"])["prompt_eval_count"] < 1024
    assert len(set(rendered)) == len(rendered) == calls["render_conversation"] == calls["_segment_inputs"]
    assert len(rendered) <= 8, "40 messages are bisected"


def test_a_chat_that_fits_is_rendered_once(demo_server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ask(demo_server, "chat")  # loaded
    calls = counted(monkeypatch, (preparation, "render_conversation"), (input_processor, "_segment_inputs"))
    for options in ({}, {"truncate": False}):
        ask(demo_server, "chat", messages=LONG[:2], options=STORY["options"], **options)
    assert calls == {"render_conversation": 2, "_segment_inputs": 2}


@pytest.mark.parametrize(
    "body", [{}, {"truncate": False, "messages": LONG[:2]}, {"think": False}], ids=["dropped", "whole", "no reasoning"]
)
def test_messages_cross_to_a_process_once(
    demo_server: str, monkeypatch: pytest.MonkeyPatch, body: dict[str, Any]
) -> None:
    body = {"messages": LONG, "options": STORY["options"]} | body
    expected = ask(demo_server, "chat", **body)
    with running(create_app(ServerSettings(isolation="process", shutdown_timeout=5))) as address:
        ask(address, "chat")
        calls = counted(monkeypatch, (CalledModel, "_call"), (CalledModel, "_stream"))
        found = ask(address, "chat", **body)
        assert (found["message"], found["prompt_eval_count"]) == (expected["message"], expected["prompt_eval_count"])
        assert calls == {"_stream": 1}
