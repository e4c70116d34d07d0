"""Texts that no context of the engine can hold are refused, or cut, before they are tokenized."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from ollama_engine import Engine, SamplingParams, demo
from ollama_engine.chat.template import ChatTemplate
from ollama_engine.errors import ContextOverflowError
from ollama_engine.segments import Text, Tokens
from ollama_engine.tokenizer import Tokenizer

NUM_CTX = 64
STORY = " ".join(f"On day {number} the fox met a bear, and they ran to the old tree." for number in range(400))
GREEDY = SamplingParams(temperature=0, max_tokens=4)
CUT = r"let it be cut with on_overflow="
Call = Callable[[Engine, str], object]


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine(demo.path(), num_ctx=NUM_CTX, parallel=1, threads=1) as engine:
        yield engine


@pytest.fixture
def tokenized(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The lengths of all texts that are tokenized."""
    lengths: list[int] = []
    between = Tokenizer._encode_between

    def noted(self: Tokenizer, data: bytes, *arguments: Any, **options: Any) -> list[int]:
        lengths.append(len(data))
        return between(self, data, *arguments, **options)

    monkeypatch.setattr(Tokenizer, "_encode_between", noted)
    return lengths


def longest(engine: Engine) -> int:
    found = engine._open().tokenizer.longest_token
    assert found is not None
    return found


def test_the_longest_text_that_may_fit_is_counted(engine: Engine) -> None:
    """One character more is refused for its characters, with the same class of error."""
    most = NUM_CTX * longest(engine)
    before = engine.metrics.requests["rejected"]
    with pytest.raises(ContextOverflowError, match=r"the prompt has \d+ tokens, but num_ctx is 64"):
        engine.generate("x" * most)
    with pytest.raises(ContextOverflowError, match=f"the prompt has {most + 1} characters, and so more than 64 tokens"):
        engine.generate("x" * (most + 1))
    assert engine.metrics.requests["rejected"] == before + 2


def test_a_last_message_that_is_too_long_is_not_rendered(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Templates copy it several times, each with Python's lock held."""
    monkeypatch.setattr(ChatTemplate, "render", Mock(side_effect=AssertionError("it is rendered")))
    before = engine.metrics.requests["rejected"]
    text = "x" * (NUM_CTX * longest(engine) + 1)
    for drop in (False, True):
        with pytest.raises(ContextOverflowError, match=f"has {len(text)} characters, and so more than 64 tokens"):
            engine.chat(
                [{"role": "user", "content": "x"}, {"role": "user", "content": f" {text} "}], drop_messages=drop
            )
    assert engine.metrics.requests["rejected"] == before + 2
    with pytest.raises(AssertionError, match="it is rendered"):
        engine.chat([{"role": "user", "content": text}, {"role": "assistant", "content": "x"}])


@pytest.fixture
def rendered(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The lengths of all texts that chat templates write."""
    lengths: list[int] = []
    render = ChatTemplate.render

    def noted(self: ChatTemplate, *arguments: Any, **options: Any) -> Any:
        text = render(self, *arguments, **options)
        lengths.append(len(text))
        return text

    monkeypatch.setattr(ChatTemplate, "render", noted)
    return lengths


@pytest.mark.parametrize("role", ["system", "user"])
@pytest.mark.parametrize("num_keep", [0, 5])
def test_the_middle_of_a_message_that_is_cut_is_not_rendered(
    engine: Engine, rendered: list[int], role: str, num_keep: int
) -> None:
    """The prompt is cut to the same tokens as one that is rendered whole."""
    messages = [{"role": role, "content": f"  {STORY}\n"}, {"role": "user", "content": f"\n {STORY[:-9]} "}]
    options: dict[str, Any] = {"on_overflow": "truncate", "num_keep": num_keep}
    whole = engine.generate(engine.apply_template(messages), GREEDY, **options)
    most = (2 * NUM_CTX + num_keep + 3) * longest(engine)
    rendered.clear()
    answer = engine.chat(messages, GREEDY, **options)
    assert max(rendered) < 2 * most + 200 < len(STORY)
    assert (answer.tokens, answer.usage.prompt_tokens) == (whole.tokens, whole.usage.prompt_tokens)
    assert answer.usage.dropped_prompt_tokens == whole.usage.dropped_prompt_tokens > 0


def test_a_text_beside_an_image_is_cut_as_well(rendered: list[int]) -> None:
    with Engine(demo.vision_path(), num_ctx=NUM_CTX, parallel=1, threads=1) as engine:
        parts = [{"type": "image", "image": demo.picture_path()}, {"type": "text", "text": STORY + "What do you see?"}]
        messages = [{"role": "user", "content": parts}]
        whole = engine.generate(engine.apply_template(messages), GREEDY, on_overflow="truncate")
        rendered.clear()
        answer = engine.chat(messages, GREEDY, on_overflow="truncate")
        assert max(rendered) < 3 * NUM_CTX * longest(engine) < len(STORY)
        assert (answer.tokens, answer.usage.prompt_tokens) == (whole.tokens, whole.usage.prompt_tokens)


def test_old_messages_that_no_context_holds_are_not_rendered(engine: Engine, rendered: list[int]) -> None:
    """Neither one that is too long, nor more than fit together."""
    last = [{"role": "user", "content": "Tell me of a fox."}, {"role": "assistant", "content": "It ran."}] * 2
    for old in ([STORY], [STORY[:700]] * 40, ["x", STORY, "y"]):
        rendered.clear()
        messages = [*({"role": "user", "content": text} for text in old), *last[:3]]
        answer = engine.chat(messages, GREEDY, drop_messages=True, on_overflow="truncate")
        assert max(rendered) < NUM_CTX * longest(engine) + 500 < len(STORY)
        kept = messages[answer.dropped_messages :]
        assert len(engine.tokenize(engine.apply_template(kept))) == answer.usage.prompt_tokens < NUM_CTX
        assert len(engine.tokenize(engine.apply_template(messages[answer.dropped_messages - 1 :]))) >= NUM_CTX


def test_scores_of_texts_that_are_too_long_are_counted(engine: Engine) -> None:
    before = engine.metrics.requests_by_kind["scoring"]["rejected"]
    with pytest.raises(ContextOverflowError):
        engine.score([5] * NUM_CTX, [[6], [7, 8]])
    assert engine.metrics.requests_by_kind["scoring"]["rejected"] == before + 1


@pytest.mark.parametrize(("call", "message"), [
    (lambda engine, text: engine.generate(text), CUT),
    (lambda engine, text: engine.generate([text, "x"]), r"prompts\[0\]: the prompt has"),
    (lambda engine, text: engine.generate([Tokens([1]), Text(text[:9000]), Tokens([2]), Text(text[9000:])]), CUT),
    (lambda engine, text: engine.generate(text, on_overflow="shift", truncate_prompt=False), "leave truncate_prompt"),
    (lambda engine, text: engine.chat([{"role": "user", "content": text}]), CUT),
    (lambda engine, text: engine.chat([{"role": "user", "content": text}], drop_messages=True), CUT),
    (lambda engine, text: engine.session().append(text), CUT),
    (lambda engine, text: engine.logits(text), "choose a larger num_ctx"),
    (lambda engine, text: engine.score(text, " x"), "choose a larger num_ctx"),
    (lambda engine, text: engine.score("x", text), "a continuation has"),
    (lambda engine, text: engine.embed(text), CUT),
    (lambda engine, text: engine.embed(["x", text]), r"texts\[1\]: the prompt has"),
])  # fmt: skip
def test_nothing_of_it_is_tokenized(engine: Engine, tokenized: list[int], call: Call, message: str) -> None:
    with pytest.raises(ContextOverflowError, match=message):
        call(engine, STORY)
    assert max(tokenized, default=0) < 1000


@pytest.mark.parametrize("overflow", ["truncate", "shift"])
@pytest.mark.parametrize("num_keep", [0, 5])
def test_a_cut_leaves_the_tokens_that_cutting_all_of_them_leaves(
    engine: Engine, tokenized: list[int], overflow: Any, num_keep: int
) -> None:
    ids = engine.tokenize(STORY)
    tokenized.clear()
    answer = engine.generate(STORY, GREEDY, on_overflow=overflow, num_keep=num_keep)
    assert sum(tokenized) <= (NUM_CTX + num_keep + 3) * longest(engine) < len(STORY)
    room = NUM_CTX - (4 if overflow == "truncate" else 0)
    kept = ids[:num_keep] + ids[num_keep - room :]
    assert answer.usage.prompt_tokens - answer.usage.dropped_prompt_tokens == len(kept)
    assert answer.tokens == engine.generate(kept, GREEDY, on_overflow=overflow).tokens
    parts = [Text(STORY[at : at + 700], parse_special=bool(at % 1400)) for at in range(0, len(STORY), 700)]
    assert engine.generate(parts, GREEDY, on_overflow=overflow, num_keep=num_keep).tokens == answer.tokens


def test_a_text_to_embed_is_cut_behind_its_beginning(engine: Engine, tokenized: list[int]) -> None:
    ids = engine.tokenize(STORY)
    tokenized.clear()
    (found,) = engine.embeddings([STORY], on_overflow="truncate")
    assert sum(tokenized) <= (NUM_CTX + 2) * longest(engine) < len(STORY)
    assert found.prompt_tokens - found.dropped_tokens == NUM_CTX
    np.testing.assert_array_equal(found.vector, engine.embed(ids[:NUM_CTX]))
