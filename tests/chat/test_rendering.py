"""Templates render as transformers renders them (make_template_goldens.py)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ollama_engine.chat.template import ChatTemplate
from tests.chat.conversations import CONVERSATIONS, NOW, TOKENS
from tests.chat.make_template_goldens import FILE, digest, ours
from tests.chat.own_templates import OWN
from tests.chat.real_templates import sources

GOLDENS: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", sorted(GOLDENS["real"]))
def test_real_templates(name: str) -> None:
    template, wanted = ChatTemplate(sources()[name], TOKENS, lambda: NOW), GOLDENS["real"][name]
    found = {conversation: digest(ours(template, conversation)) for conversation in CONVERSATIONS}
    assert found == wanted, "make_template_goldens.py --show TEMPLATE CONVERSATION shows both texts"


def test_no_golden_is_missing() -> None:
    assert set(GOLDENS["real"]) == set(sources())
    assert sum(text is not None for texts in GOLDENS["real"].values() for text in texts.values()) > 2000


@pytest.mark.parametrize("name", OWN)
def test_what_templates_are_given(name: str) -> None:
    wanted = GOLDENS["own"][name]
    try:
        template = ChatTemplate(OWN[name], TOKENS, lambda: NOW)
    except ValueError:
        assert wanted is None
        return
    assert ours(template, "calls") == wanted
