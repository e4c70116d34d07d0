"""Chains: prompts that begin alike share the beginnings of their chains, and no others do."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from ollama_engine.ray.prompt_chain import BLOCK, MOST_BLOCKS, prompt_chain
from ollama_engine.server.isolation.codec import encode

TEXTS = st.text(max_size=3 * BLOCK)


def message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


MESSAGES = st.lists(st.builds(message, st.sampled_from(["system", "user", "assistant"]), TEXTS), max_size=5)


def shared(left: list[bytes], right: list[bytes]) -> int:
    pairs = zip(left, right, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(left), len(right)))


@given(MESSAGES, MESSAGES)
def test_the_next_turn_of_a_conversation_shares_all_of_the_turn_before(before: list[Any], further: list[Any]) -> None:
    first = prompt_chain("m", encode(before), {})
    assert prompt_chain("m", encode([*before, *further]), {})[: len(first)] == first


@given(TEXTS, TEXTS)
def test_texts_share_their_common_blocks_and_no_more(left: str, right: str) -> None:
    a, b = left.encode("utf-8", "surrogatepass"), right.encode("utf-8", "surrogatepass")
    blocks = [[text[i : i + BLOCK] for i in range(0, len(text), BLOCK)] for text in (a, b)]
    alike = next((i for i, (x, y) in enumerate(zip(*blocks, strict=False)) if x != y), min(map(len, blocks)))
    assert shared(prompt_chain("m", left, {}), prompt_chain("m", right, {})) == alike


def test_another_model_or_other_tools_share_nothing() -> None:
    prompt = [message("user", "Hello")]
    chain = prompt_chain("m", prompt, {})
    assert shared(chain, prompt_chain("n", prompt, {})) == 0
    assert shared(chain, prompt_chain("m", prompt, {"tools": [{"type": "function"}]})) == 0
    assert shared(chain, prompt_chain("m", prompt, {"num_keep": 4, "tools": None})) == 1


def test_token_ids_have_blocks_too() -> None:
    ids = list(range(1000))
    assert shared(prompt_chain("m", ids, {}), prompt_chain("m", [*ids, 1, 2], {})) > 5
    assert prompt_chain("m", [], {}) == []


def test_long_prompts_have_no_longer_chains() -> None:
    assert len(prompt_chain("m", "x" * BLOCK * (MOST_BLOCKS + 9), {})) == MOST_BLOCKS
