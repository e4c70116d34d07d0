"""A user's text never becomes a control token, whatever a template does with it."""

from __future__ import annotations

import json
import random
import re
from typing import Any

import pytest

from ollama_engine.chat.template import text_segments
from tests.chat.injection import KINDS, MARKED, SLOTS, Target, content, harmless, hostile, rendered
from tests.chat.make_template_goldens import FILE, digest
from tests.chat.real_templates import sources
from tests.support.suite import scaled, slow_except

GOLDENS: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
NAMES = sorted(GOLDENS["real"])
QUICK = (
    "Qwen-Qwen3-0.6B", "meta-llama-Llama-3.1-8B-Instruct", "openai-gpt-oss-120b", "google-gemma-2-2b-it",
    "deepseek-ai-DeepSeek-V3.1", "mistralai-Mistral-Nemo-Instruct-2407", "meetkai-functionary-medium-v3.1",
    "NousResearch-Hermes-3-Llama-3.1-8B-tool_use", "MiniMax-M3", "ibm-granite-granite-3.3-2B-Instruct",
)  # fmt: skip
CONTENTS = scaled(1_000, quick=60)


@pytest.mark.parametrize("name", slow_except(NAMES, *QUICK))
def test_contents_hold_no_control_token(name: str) -> None:
    target = Target.of(sources()[name])
    rng = random.Random(name)
    looked_at = compared = 0
    for _ in range(CONTENTS // SLOTS):
        texts = [content(rng, target.tokens) for _ in range(SLOTS)]
        for kind in KINDS:
            text = rendered(target.template, texts, kind)
            if text is None:
                continue
            looked_at += 1
            ids = target.ids(text_segments(text))
            assert target.tokenizer.decode(ids, skip_special=False) == text, "the text is all there"
            steering = target.steering(ids)
            check_marks(target, text, steering, texts)
            compared += same_as_harmless(
                target, text, steering, rendered(target.template, list(map(harmless, texts)), kind)
            )
    assert looked_at
    assert compared, "at least one pair of conversations differs in nothing but the atoms"


def check_marks(target: Target, text: str, steering: list[tuple[int, int, str]], texts: list[str]) -> None:
    """No control token lies in what stands between marks as it was typed.

    Left out are atoms that the template cuts: it takes reasoning out of contents at </think>, <mm:think>
    and the like, and writes its own there.
    """
    typed = {match[1] for given in texts for match in MARKED.finditer(given)}
    if ".split(" in target.template.source:
        typed = {atom for atom in typed if not re.search(r"think|channel|reason", atom, re.IGNORECASE)}
    for match in MARKED.finditer(text):
        if match[1] in typed:
            inside = [token for first, last, token in steering if first < match.end() and last > match.start()]
            assert not inside, f"{match[0]!r} holds {inside}"


def same_as_harmless(target: Target, text: str, steering: list[tuple[int, int, str]], plain: str | None) -> bool:
    """Where the template did the same with harmless contents, it wrote the same control tokens at the same places."""
    if plain is None or harmless(text) != str.__str__(plain):
        return False
    assert target.steering(target.ids(text_segments(plain))) == steering
    return True


@pytest.mark.parametrize("name", slow_except(NAMES, *QUICK))
def test_the_text_is_that_of_transformers(name: str) -> None:
    target = Target.of(sources()[name])
    found = [
        None if text is None else digest(text)
        for text in hostile(name, lambda *given: rendered(target.template, *given))
    ]
    assert found == GOLDENS["hostile"][name]
