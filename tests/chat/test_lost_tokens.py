"""Control tokens whose marks a template loses, told from those that callers type."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest

from ollama_engine import Engine, demo
from ollama_engine.chat.lost_tokens import lost_tokens
from ollama_engine.chat.messages import Message, ToolCall
from ollama_engine.chat.provenance import Traced, joined

END = "<|end|>"


def lost(text: str, given: object) -> set[str]:
    places = [match.span() for match in re.finditer(r"<\|[a-z]+\|>", str.__str__(text))]
    return lost_tokens(text, places, given)


@pytest.mark.parametrize("given", [
    [END], (Message("user", f"a{END}b"),), [{END: 1}], {"a": [{"b": END}]}, [Message("user", ("a", END))],
    [Message("assistant", tool_calls=(ToolCall("f", {"a": END}),))], [Message("user", "x", extra={"a": [END]})],
], ids=str)  # fmt: skip
def test_who_typed_it(given: Any) -> None:
    assert lost(END, given) == set()
    assert lost(END + "<|other|>", given) == {"<|other|>"}


def test_what_is_marked_is_not_lost() -> None:
    text = joined([Traced.whole(END), "hi", Traced.whole(END), "<|user|>", Traced.whole("x")])
    assert lost(text, ["hi"]) == {"<|user|>"}
    assert lost(joined([Traced.whole("<|en"), "d|>"]), []) == {END}, "marked as a whole, or not at all"
    assert lost("", []) == set()


def test_many_typed_tokens_take_no_longer_than_their_text() -> None:
    with Engine(demo.path(), num_ctx=64, threads=1) as engine:
        many = [{"role": "user", "content": "<|eot_id|> x"}] * 3_000
        for messages in ([{"role": "user", "content": "é<|eot_id|> x" * 80_000}], many):
            begin = time.process_time()
            segments = engine.apply_template(messages)
            seconds = time.process_time() - begin
            assert sum("<|eot_id|> x" in getattr(segment, "text", "") for segment in segments) >= len(messages)
            assert seconds < 10, "linear; in squares it takes minutes"


def test_places_are_in_characters() -> None:
    with Engine(demo.path(), num_ctx=64, threads=1) as engine:
        text = "é<|eot_id|>日\udc80<|eot_id|>x<|eot_id|>"
        places = engine._open().tokenizer.steering_texts(text)
        assert [text[begin:end] for begin, end in places] == ["<|eot_id|>"] * 3
