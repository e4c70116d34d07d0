"""What takes time before a request is answered happens in threads: files, templates, images."""

from __future__ import annotations

import base64
import threading
from typing import Any

import pytest

from ollama_engine.chat.go_template import GoTemplate
from ollama_engine.chat.message_images import from_base64
from ollama_engine.chat.template import ChatTemplate
from ollama_engine.server.library import Library
from ollama_engine.server.ollama import messages
from ollama_engine.store import capabilities
from tests.server.ollama.asking import post
from tests.server.pictures import RED_SQUARE

ON_THE_LOOP = "server"
"""The name of the thread with the event loop of `demo_server`."""


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> dict[str, set[str]]:
    """Which threads do what."""
    seen: dict[str, set[str]] = {}

    def noted(owner: Any, name: str, what: str) -> None:
        work = getattr(owner, name)

        def note(*args: Any, **kwargs: Any) -> Any:
            seen.setdefault(what, set()).add(threading.current_thread().name)
            return work(*args, **kwargs)

        monkeypatch.setattr(owner, name, note)

    noted(Library, "find", "files")
    noted(GoTemplate, "__init__", "Go templates")
    noted(GoTemplate, "fill_in", "filling in")
    noted(ChatTemplate, "__init__", "Jinja templates")
    noted(messages, "from_base64", "images")
    capabilities._jinja_abilities.cache_clear()
    return seen


def test_nothing_that_takes_time_is_done_on_the_event_loop(demo_server: str, threads: dict[str, set[str]]) -> None:
    ask = {"model": "demo", "prompt": "x", "stream": False, "options": {"num_predict": 1}}
    assert post(demo_server, "generate", ask | {"template": "{{ .Prompt }}"}).status_code == 200
    assert post(demo_server, "generate", ask | {"template": "{{ .Prompt }}{{ .Suffix }}", "suffix": "y"}).is_success
    message = {"role": "user", "content": "What colour is it?", "images": [RED_SQUARE]}
    assert post(demo_server, "chat", ask | {"model": "demo-vision", "messages": [message]}).status_code == 200
    assert post(demo_server, "embed", {"model": "demo", "input": "x"}).status_code == 200
    assert sorted(threads) == ["Go templates", "Jinja templates", "files", "filling in", "images"]
    assert not [what for what, names in threads.items() if ON_THE_LOOP in names]


def test_base64_with_as_many_spaces_as_letters() -> None:
    """Split at them, it would be millions of texts."""
    data = bytes(range(256)) * 40
    text = " \n".join(base64.b64encode(data).decode())
    assert from_base64(text) == data
    for wrong in ("\u00e9", "a", "====", "a?=="):
        with pytest.raises(ValueError, match=r"ascii|base64|[Pp]adding"):
            from_base64(wrong)


def test_how_long_a_template_of_a_request_may_be(demo_server: str) -> None:
    refused = post(demo_server, "generate", {"model": "demo", "prompt": "x", "template": "{{ .Prompt }}" * 100_000})
    assert refused.status_code == 400
    assert "a chat template has 131072 characters at most" in refused.json()["error"]
