"""`drop_messages`: which messages are left out of a conversation that is longer than the context; `truncate_prompt`."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest

from ollama_engine import Engine, SamplingParams, demo
from ollama_engine.chat.messages import read_messages
from ollama_engine.errors import ChatError, ConfigError, ContextOverflowError, DeadlineError
from ollama_engine.runner.chat.conversation import Conversation
from ollama_engine.runner.chat.fitting import RenderedChat, fewest_dropped, fitted
from ollama_engine.runner.chat.preparation import ChatPreparation
from ollama_engine.segments import Text

SHORT = SamplingParams(max_tokens=2, temperature=0)


@pytest.mark.parametrize("n_turns", [*range(12), 63, 64, 65, 1000])
@pytest.mark.parametrize("num_ctx", [1, 7, 64, 100_000])
def test_the_fewest_are_dropped_and_no_number_is_tried_twice(n_turns: int, num_ctx: int) -> None:
    # A message has a token at least, so num_ctx of them never fit.
    least = max(0, n_turns - num_ctx + 1)
    for needed in {0, 1, n_turns // 2, n_turns - 1, n_turns, n_turns + 1, least}:
        if needed < least:
            continue
        tried: list[int] = []

        def fits(n_dropped: int, needed: int = needed, tried: list[int] = tried) -> bool:
            tried.append(n_dropped)
            return n_dropped >= needed

        assert fewest_dropped(n_turns, num_ctx, fits) == min(needed, n_turns)
        assert len(set(tried)) == len(tried) <= 1 + n_turns.bit_length()
        for certain in {0, needed // 2, needed}:
            tried.clear()
            assert fewest_dropped(n_turns, num_ctx, fits, min(certain, n_turns)) == min(needed, n_turns)
            assert not [n for n in tried if n < min(certain, n_turns)]


@pytest.mark.parametrize(("room", "dropped"), [(9, 0), (8, 1), (6, 1), (5, 2), (2, 2), (1, 2)])
def test_turns_that_go_for_their_characters(room: int, dropped: int) -> None:
    """Those of answers are not counted: a template may leave reasoning out."""
    texts = [("user", " abc "), ("assistant", "x" * 100), ("user", "abcd"), ("user", "ab\n")]
    given = Conversation(read_messages([{"role": role, "content": text} for role, text in texts]), None, None, {})
    assert given.certainly_dropped([[0, 1], [2]], room) == dropped


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine(demo.path(), num_ctx=256, parallel=1, threads=1) as engine:
        yield engine


def conversation(n: int) -> list[dict[str, str]]:
    old = [{"role": "user", "content": f"One day fox number {number} met a dog. " * 3} for number in range(n)]
    return [{"role": "system", "content": "Be brief."}, *old, {"role": "user", "content": "Tell me of a fox."}]


def n_tokens(engine: Engine, messages: list[dict[str, str]]) -> int:
    return len(engine.tokenize(engine.apply_template(messages)))


def test_one_message_more_would_not_fit(engine: Engine) -> None:
    messages = conversation(30)
    answer = engine.chat(messages, SHORT, drop_messages=True)
    assert 0 < answer.dropped_messages < 30
    kept = [messages[0], *messages[1 + answer.dropped_messages :]]
    assert n_tokens(engine, kept) == answer.usage.prompt_tokens < 256
    assert n_tokens(engine, [messages[0], *messages[answer.dropped_messages :]]) >= 256
    assert engine.apply_template(messages, drop_messages=True) == engine.apply_template(kept)
    assert engine.chat(kept, SHORT).content == answer.content


def test_nothing_is_dropped_unless_it_is_asked_for(engine: Engine) -> None:
    assert engine.chat(conversation(1), SHORT, drop_messages=True).dropped_messages == 0
    with pytest.raises(ContextOverflowError):
        engine.chat(conversation(30), SHORT)
    with pytest.raises(ConfigError, match="drop_messages is True or False"):
        engine.chat(conversation(1), SHORT, drop_messages=1)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("roles", "turns"),
    [
        ("s u a u a u", [[1, 2], [3, 4]]),
        ("s u u u", [[1], [2]]),
        ("d u a d u", [[1, 2]]),
        ("u a u a", [[0, 1]]),  # the last answer is to be continued
        ("a u a u", [[0], [1, 2]]),
        ("u a t t a u a t a t", [[0, 1, 2, 3, 4], [6, 7]]),  # a call goes with its results, the question stays
        ("u a t a t", [[1, 2]]),
        ("s u", []),
        ("s", []),
        ("a a", [[0]]),
    ],
)
def test_what_goes_together(roles: str, turns: list[list[int]]) -> None:
    names = {"s": "system", "d": "developer", "u": "user", "a": "assistant", "t": "tool"}
    messages = read_messages([{"role": names[role], "content": "x"} for role in roles.split()])
    assert Conversation(messages, None, None, {}).droppable == turns


STRICT = """{% set all = messages if messages[0].role != "system" else messages[1:] %}
{% for message in all %}
{% if (message.role == "user") != (loop.index0 % 2 == 0) %}{{ raise_exception("roles must alternate") }}{% endif %}
{{ message.role }}: {{ message.content }}
{% endfor %}"""


def alternating(n: int) -> list[dict[str, str]]:
    """`n` questions; all but the last have an answer."""
    turns = [
        message
        for number in range(n - 1)
        for message in (
            {"role": "user", "content": f"Fox number {number}? " * (1 + number % 3)},
            {"role": "assistant", "content": f"It met a dog and ran away {number} times. " * (1 + number % 4)},
        )
    ]
    return [{"role": "system", "content": "Be brief."}, *turns, {"role": "user", "content": "Tell me of a fox."}]


@pytest.mark.parametrize("n", [8, 9, 30])
def test_a_template_whose_roles_must_alternate(engine: Engine, n: int) -> None:
    messages = alternating(n)
    with pytest.raises(ChatError, match="roles must alternate"):
        engine.apply_template(messages[2:], template=STRICT)
    answer = engine.chat(messages, SHORT, template=STRICT, drop_messages=True)
    assert answer.dropped_messages > 0
    assert answer.dropped_messages % 2 == 0
    kept = [messages[0], *messages[1 + answer.dropped_messages :]]
    assert len(engine.tokenize(engine.apply_template(kept, template=STRICT))) == answer.usage.prompt_tokens
    before = [messages[0], *messages[answer.dropped_messages - 1 :]]
    assert len(engine.tokenize(engine.apply_template(before, template=STRICT))) >= 256


def test_what_a_template_refuses_does_not_fit(engine: Engine) -> None:
    no_odd = "{% if messages | length % 2 == 1 %}{{ raise_exception('odd') }}{% endif %}" + STRICT
    messages = alternating(30)[1:]  # an odd number of them, whatever goes
    with pytest.raises(ChatError, match="odd"):
        engine.chat(messages, SHORT, template=no_odd, drop_messages=True)
    with pytest.raises(ChatError, match="odd"):
        engine.chat(messages[-1:], SHORT, template=no_odd, drop_messages=True)
    first_too = "{% if messages | length > 8 %}{{ raise_exception('many') }}{% endif %}" + STRICT
    assert engine.chat(messages, SHORT, template=first_too, drop_messages=True).dropped_messages >= 59 - 8


@pytest.fixture
def renderings(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many messages each rendering had."""
    made: list[int] = []
    rendered = ChatPreparation._rendered

    def noted(self: ChatPreparation, given: Conversation, *args: Any, **options: Any) -> RenderedChat:
        made.append(len(given.messages))
        return rendered(self, given, *args, **options)

    monkeypatch.setattr(ChatPreparation, "_rendered", noted)
    return made


def test_nothing_is_rendered_twice(engine: Engine, renderings: list[int]) -> None:
    for messages in (conversation(30), alternating(30), conversation(1), alternating(1)):
        renderings.clear()
        engine.chat(messages, SHORT, drop_messages=True)
        assert len(set(renderings)) == len(renderings) <= 6
    for sentences, expected in ((60, [1]), (300, [])):  # more characters than 256 tokens have are refused before
        renderings.clear()
        with pytest.raises(ContextOverflowError):
            engine.chat([{"role": "user", "content": "One day a fox ran. " * sentences}], SHORT, drop_messages=True)
        assert renderings == expected


def test_cancelling_and_timeouts_end_it_between_two_renderings(engine: Engine) -> None:
    """Where no rendering takes long enough to notice them, but there are many."""
    renderings: list[int] = []

    def rendered(n_turns: int) -> RenderedChat:
        renderings.append(n_turns)
        return RenderedChat([Text("a " * 1000)], engine._preparation().templates.choose(None), "", ())

    def late() -> None:
        if renderings:
            raise DeadlineError("late")

    with pytest.raises(DeadlineError):
        fitted(rendered, 100, engine._open(), late)
    assert len(renderings) == 1


def test_a_stream_holds_no_conversation(engine: Engine) -> None:
    """Which may have images in it."""
    for n, drop_messages in ((3, False), (30, True)):
        stream = engine.chat_stream(conversation(n), SHORT, drop_messages=drop_messages)
        gc.collect()
        assert not [found for found in gc.get_objects() if type(found) is Conversation]
        assert stream.result().content


def test_a_call_that_is_waited_for_renders_its_conversation(engine: Engine) -> None:
    messages = conversation(30)
    (completion,) = engine._chat_call(messages, SHORT, {"drop_messages": True}).wait()
    assert completion.tokens == engine.chat(messages, SHORT, drop_messages=True).tokens


def test_what_cannot_be_dropped_is_refused_or_cut(engine: Engine) -> None:
    messages = [{"role": "user", "content": "One day a fox ran. " * 300}]
    with pytest.raises(ContextOverflowError):
        engine.chat(messages, SHORT, drop_messages=True)
    cut = engine.chat(messages, SHORT, drop_messages=True, on_overflow="truncate")
    assert cut.usage.dropped_prompt_tokens > 1000
    assert cut.dropped_messages == 0


def test_a_prompt_that_may_not_be_cut_although_its_answer_may_shift() -> None:
    with Engine(demo.path(), num_ctx=64, parallel=1, threads=1) as engine:
        long = SamplingParams(max_tokens=100, temperature=0)
        answer = engine.generate("One day", long, on_overflow="shift", truncate_prompt=False)
        assert answer.usage.shifted_tokens > 0
        for policy in ("shift", "truncate"):
            with pytest.raises(ContextOverflowError, match=r"the prompt has .*: leave truncate_prompt out"):
                engine.generate("One day a fox ran. " * 30, SHORT, on_overflow=policy, truncate_prompt=False)  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="truncate_prompt is True or False"):
            engine.generate("One day", SHORT, truncate_prompt=0)  # type: ignore[arg-type]


def test_a_fork_may_be_cut_although_its_source_may_not() -> None:
    """Its prompt ends with an answer, which fills the context."""
    with Engine(demo.path(), num_ctx=64, parallel=2, threads=1) as engine:
        long = SamplingParams(
            max_tokens=100, temperature=0, logit_bias=dict.fromkeys(engine._open().tokenizer.eog_ids, -1e9)
        )
        source = engine.submit("One day", long, on_overflow="shift", truncate_prompt=False)
        assert len(source.result().tokens) == 100
        assert len(engine.fork(source, SHORT).result().tokens) == 2
        with pytest.raises(ContextOverflowError):
            engine.fork(source, SHORT, truncate_prompt=False)
