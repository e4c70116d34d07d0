"""Templates for files without one: chosen by the vocabulary, and the same as published templates of the family."""

from __future__ import annotations

from typing import Any

import pytest

from ollama_engine.chat.families import FAMILIES, Family, fallback_family
from ollama_engine.chat.provenance import trusted_spans
from ollama_engine.chat.template import ChatTemplate
from tests.chat.conversations import NOW
from tests.chat.injection import MARKUP
from tests.chat.real_templates import sources

BY_NAME = {family.name: family for family in FAMILIES}
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
SYSTEM, USER = {"role": "system", "content": "You are kind."}, {"role": "user", "content": "Hello"}
ANSWER, AGAIN = {"role": "assistant", "content": "Hi."}, {"role": "user", "content": "And you?"}
TURNS = [USER, ANSWER, AGAIN]

PUBLISHED = [
    ("chatml", "Qwen-Qwen2.5-7B-Instruct", [SYSTEM, *TURNS], {}),
    ("gemma", "google-gemma-2-2b-it", TURNS, {}),
    ("phi3", "microsoft-Phi-3.5-mini-instruct", [SYSTEM, *TURNS], {"without": "</s>"}),
    ("mistral", "mistralai-Mistral-Nemo-Instruct-2407", TURNS, {}),
    ("mistral", "mistralai-Mistral-Nemo-Instruct-2407", [USER], {}),
    (
        "deepseek",
        "deepseek-ai-DeepSeek-R1-Distill-Llama-8B",
        TURNS,
        {"without": "<think>\n", "eos_token": "<｜end▁of▁sentence｜>"},
    ),
    ("granite", "ibm-granite-granite-3.3-2B-Instruct", [SYSTEM, *TURNS], {}),
]


@pytest.mark.parametrize(("family", "published", "messages", "but"), PUBLISHED)
def test_as_published(family: str, published: str, messages: list[dict[str, Any]], but: dict[str, str]) -> None:
    tokens = TOKENS | {"eos_token": but.get("eos_token", "</s>")}
    found = ChatTemplate(BY_NAME[family].source, tokens).render(messages, add_generation_prompt=True)
    wanted = ChatTemplate(sources()[published], tokens, lambda: NOW).render(messages, add_generation_prompt=True)
    assert found == wanted.removesuffix(but.get("without", ""))


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_each_writes_all_and_knows_what_it_wrote(family: Family) -> None:
    text = ChatTemplate(family.source, TOKENS).render([SYSTEM, *TURNS], add_generation_prompt=True)
    assert [text.index(message["content"]) for message in (SYSTEM, *TURNS)] == sorted(
        text.index(message["content"]) for message in (SYSTEM, *TURNS)
    )
    spans = trusted_spans(text)
    for match in MARKUP.finditer(text):
        assert any(begin <= match.start() and match.end() <= end for begin, end in spans), match[0]


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_a_vocabulary_tells(family: Family) -> None:
    found = fallback_family({*family.tokens, "<s>"}.__contains__, "llama-2-7b-chat")
    assert found == family


def test_base_models_have_none() -> None:
    assert fallback_family({"<s>", "</s>"}.__contains__, "Llama-2-7b") is None
    assert fallback_family({"<s>", "</s>"}.__contains__, "Mistral-7B-Instruct-v0.1") == BY_NAME["llama2"]
    assert fallback_family(set[str]().__contains__) is None
