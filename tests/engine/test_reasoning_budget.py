"""A reasoning budget: the model reasons as it would, is made to close, and goes on from there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from ollama_engine import Completion, Engine, ReasoningBudget, SamplingParams, demo
from ollama_engine.errors import ChatError, ConfigError, IncompleteError

PROMPT = "Once upon a time there was a little girl called Lily. She"
CLOSES = " The end of it."
GREEDY = SamplingParams(temperature=0, max_tokens=40)


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine(demo.path(), num_ctx=96, parallel=3, threads=1, verify=True, kv_cache_type="f32") as engine:
        yield engine


def closing(engine: Engine, text: str = CLOSES) -> tuple[int, ...]:
    return tuple(engine.tokenize(text, add_special=False))


def budget(tokens: int, **texts: Any) -> ReasoningBudget:
    return ReasoningBudget(tokens, **{"opens": None, "closes": CLOSES, **texts})


def check(engine: Engine, found: Completion, n: int, plain: Completion, text: str = CLOSES) -> None:
    forced = closing(engine, text)
    assert found.tokens[:n] == plain.tokens[:n]
    assert found.tokens[n : n + len(forced)] == forced
    after = engine.generate(
        [*engine.tokenize(PROMPT), *found.tokens[: n + len(forced)]],
        SamplingParams(temperature=0, max_tokens=40 - n - len(forced)),
    )
    assert found.tokens[n + len(forced) :] == after.tokens, "the answer goes on as if the model had written all of it"


@pytest.mark.parametrize("n", [0, 1, 7])
def test_the_text_is_put_in_where_the_budget_ends(engine: Engine, n: int) -> None:
    plain = engine.generate(PROMPT, GREEDY)
    check(engine, engine.generate(PROMPT, GREEDY, reasoning_budget=budget(n)), n, plain)
    told = engine.generate(PROMPT, GREEDY, reasoning_budget=budget(n, message=" So."))
    check(engine, told, n, plain, " So." + CLOSES)


def test_who_closes_in_time_is_left_alone(engine: Engine) -> None:
    plain = engine.generate(PROMPT, GREEDY)
    early = engine.detokenize(plain.tokens[2:4])
    assert engine.generate(PROMPT, GREEDY, reasoning_budget=budget(5, closes=early)).tokens == plain.tokens


def test_an_answer_that_does_not_open_is_left_alone(engine: Engine) -> None:
    plain = engine.generate(PROMPT, GREEDY)
    assert engine.generate(PROMPT, GREEDY, reasoning_budget=3).tokens == plain.tokens
    opens = engine.detokenize(plain.tokens[:2])
    found = engine.generate(PROMPT, GREEDY, reasoning_budget=budget(4, opens=opens))
    if closing(engine, opens) == plain.tokens[:2]:
        check(engine, found, 6, plain)
    else:
        assert found.tokens == plain.tokens


def test_for_several_answers_each_counts_for_itself(engine: Engine) -> None:
    params = SamplingParams(temperature=1.2, seed=5, max_tokens=20)
    for found in engine.generate(PROMPT, params, n=4, reasoning_budget=budget(6)):
        assert found.tokens[6 : 6 + len(closing(engine))] == closing(engine)
        assert CLOSES in found.text


def test_a_fork_goes_on_counting(engine: Engine) -> None:
    request = engine.submit(PROMPT, GREEDY, reasoning_budget=budget(6), draft="off")
    taken = [token for _ in range(4) for token in next(request).tokens]
    fork, fresh = engine.fork(request), engine.fork(request, reasoning_budget=budget(6))
    whole = request.result()
    assert (*taken, *fork.result().tokens)[: len(whole.tokens)] == whole.tokens
    again = engine.fork(fork).result()
    assert again.tokens[:1] != closing(engine)[:1], "its source has closed already"
    assert fresh.result().tokens[6:8] == closing(engine)[:2]


def test_sessions_streams_and_log_probabilities(engine: Engine) -> None:
    plain = engine.generate(PROMPT, GREEDY)
    chunks = list(engine.stream(PROMPT, GREEDY, reasoning_budget=budget(3)))
    assert "".join(chunk.text for chunk in chunks).count(CLOSES) == 1
    with engine.session() as session:
        session.append(PROMPT)
        check(engine, session.generate(GREEDY, reasoning_budget=budget(3)), 3, plain)
    asked = SamplingParams(temperature=0, max_tokens=20, logprobs=0)
    found = engine.generate(PROMPT, asked, reasoning_budget=budget(3))
    scored = engine.score(engine.tokenize(PROMPT), list(found.tokens))
    assert [entry.logprob for entry in found.logprobs or ()] == pytest.approx(scored.logprobs, abs=1e-3)


@pytest.mark.parametrize("given", [-1, 1.5, "many", True, [3]])
def test_what_is_refused(engine: Engine, given: Any) -> None:
    with pytest.raises(ConfigError, match="reasoning_budget is a number of tokens"):
        engine.generate(PROMPT, GREEDY, reasoning_budget=given)


@pytest.mark.parametrize("texts", [{"closes": ""}, {"opens": ""}, {"closes": 3}, {"message": None}])
def test_texts_that_are_refused(texts: Any) -> None:
    with pytest.raises(ConfigError, match="reasoning budget"):
        ReasoningBudget(3, **texts)


# -- with a format -----------------------------------------------------------------------------------------------------

SCHEMA: dict[str, Any] = {"type": "object", "properties": {"name": {"enum": ["Lily", "Tom"]}}, "required": ["name"],
                          "additionalProperties": False}  # fmt: skip


@pytest.mark.parametrize("temperature", [0, 1.5])
@pytest.mark.parametrize("n", [0, 5])
def test_a_format_is_the_answers(engine: Engine, n: int, temperature: float) -> None:
    params = SamplingParams(temperature=temperature, seed=3, max_tokens=60)
    found = engine.generate(PROMPT, params, format=SCHEMA, reasoning_budget=budget(n))
    assert found.finish_reason == "stop"
    assert found.parsed in ({"name": "Lily"}, {"name": "Tom"})
    reasoning, closes, answer = found.text.partition(CLOSES)
    assert closes
    assert json.loads(answer) == found.parsed
    assert bool(reasoning) == (n > 0)
    alone = engine.generate(PROMPT, params, format=SCHEMA)
    assert json.loads(alone.text) == alone.parsed


def test_an_answer_in_a_format_may_do_without_reasoning(engine: Engine) -> None:
    opens = " Let me think."
    params = SamplingParams(temperature=0, max_tokens=60)
    found = engine.generate(PROMPT, params, format=SCHEMA, reasoning_budget=budget(5, opens=opens))
    assert found.parsed in ({"name": "Lily"}, {"name": "Tom"})
    wanted = SamplingParams(temperature=0, max_tokens=60, logit_bias={closing(engine, opens)[0]: 1e6})
    thought = engine.generate(PROMPT, wanted, format=SCHEMA, reasoning_budget=budget(5, opens=opens))
    assert thought.text.startswith(opens)
    assert CLOSES in thought.text
    assert thought.parsed in ({"name": "Lily"}, {"name": "Tom"})


def test_who_is_cut_off_while_reasoning_has_no_value(engine: Engine) -> None:
    found = engine.generate(PROMPT, SamplingParams(max_tokens=4), format=SCHEMA, reasoning_budget=budget(9))
    with pytest.raises(IncompleteError):
        _ = found.parsed


def test_a_fork_reads_the_whole_answer(engine: Engine) -> None:
    params = SamplingParams(temperature=0, max_tokens=60, logprobs=0)  # one token in each step
    request = engine.submit(PROMPT, params, format=SCHEMA, reasoning_budget=budget(2), draft="off")
    taken = 2 + len(closing(engine)) + 2
    for _ in range(taken):
        next(request)
    assert engine.fork(request).result().parsed == request.result().parsed


@pytest.mark.parametrize("given", [None, 0, 5, budget(5)])
def test_a_format_without_reasoning_goes_on_in_a_fork_with_a_budget(
    engine: Engine, given: int | ReasoningBudget | None
) -> None:
    request = engine.submit(PROMPT, SamplingParams(temperature=0, max_tokens=60), format=SCHEMA)
    begun = next(request).text
    fork = engine.fork(request, reasoning_budget=given).result()
    assert json.loads(begun + fork.text) == fork.parsed == request.result().parsed
    assert engine.fork(request, format=dict(SCHEMA), reasoning_budget=given).result().parsed == request.result().parsed


@pytest.mark.parametrize("taken", [1, 3, 9])
@pytest.mark.parametrize("more", [0, 2, 7, None])
def test_a_budget_of_a_fork_counts_from_there_on(engine: Engine, taken: int, more: int | None) -> None:
    params = SamplingParams(temperature=0, max_tokens=60, logprobs=0)  # one token in each step
    request = engine.submit(PROMPT, params, format=SCHEMA, reasoning_budget=budget(5), draft="off")
    begun = "".join(next(request).text for _ in range(taken))
    if more is None:
        assert CLOSES not in engine.fork(request, reasoning_budget=None).result().text
    else:
        fork = engine.fork(request, reasoning_budget=more)
        first = next(fork).tokens
        again = engine.fork(fork).result()
        assert (*first, *again.tokens) == fork.result().tokens, "a fork's fork counts on"
        assert (begun + fork.result().text).count(CLOSES) == 1
        assert fork.result().parsed in ({"name": "Lily"}, {"name": "Tom"})
        if taken < 5:
            assert fork.result().tokens[more : more + 2] == closing(engine)[:2]
    with pytest.raises(ConfigError, match="as its source's"):
        engine.fork(request, reasoning_budget=budget(5, closes="</think>"))
    request.cancel()


def test_several_at_once_have_their_masks_made_together(engine: Engine) -> None:
    params = SamplingParams(temperature=1.2, seed=1, max_tokens=60)
    for found in engine.generate(PROMPT, params, n=5, format=SCHEMA, reasoning_budget=budget(3)):
        assert found.parsed["name"] in ("Lily", "Tom")


# -- chats -------------------------------------------------------------------------------------------------------------

HELLO = [{"role": "user", "content": "Tell me of Lily."}]
OPENED = "{% for m in messages %}{{ m.content }}\n{% endfor %}{% if add_generation_prompt %}<think>\n{% endif %}"
UNOPENED = "{% for m in messages %}{{ m.content }}</think>{% endfor %}"


@pytest.mark.parametrize("n", [0, 8])
def test_a_chat_reasons_between_the_markers_of_its_dialect(engine: Engine, n: int) -> None:
    found = engine.chat(HELLO, GREEDY, template=OPENED, dialect="hermes", reasoning_budget=n)
    plain = engine.chat(HELLO, GREEDY, template=OPENED, dialect="hermes")
    assert plain.content in (None, ""), "the demo never closes what it was not taught"
    assert found.content
    assert found.tokens[n : n + len(closing(engine, "</think>"))] == closing(engine, "</think>")
    assert (plain.reasoning or "").startswith(found.reasoning or "")
    assert bool(found.reasoning) == (n > 0)


@pytest.mark.parametrize("breaks", ["\n", "\n\n"])
def test_a_chat_may_begin_its_reasoning_behind_line_breaks(engine: Engine, breaks: str) -> None:
    wanted = engine.tokenize(f"{breaks}<think>", add_special=False)

    def write(tokens: Any, logits: Any) -> None:
        n = len(tokens) - len(prompt)
        if n < len(wanted):
            logits[wanted[n]] += 1e4

    template = UNOPENED.replace("</think>", "")
    prompt = engine.tokenize("".join(part.text for part in engine.apply_template(HELLO, template=template)))
    found = engine.chat(
        HELLO, GREEDY, template=template, dialect="hermes", reasoning_budget=4, logits_processors=[write]
    )
    n = len(wanted) + 4
    assert found.tokens[: len(wanted)] == tuple(wanted)
    assert found.tokens[n : n + 2] == closing(engine, "</think>")[:2]
    assert found.reasoning
    assert found.content


def test_a_chat_that_does_not_reason_is_left_alone(engine: Engine) -> None:
    options: Any = {"template": UNOPENED, "dialect": "hermes"}
    plain = engine.chat(HELLO, GREEDY, **options)
    assert engine.chat(HELLO, GREEDY, reasoning_budget=3, **options).tokens == plain.tokens


def test_a_dialect_without_reasoning(engine: Engine) -> None:
    options: Any = {"template": UNOPENED, "dialect": "functionary-v3.2"}
    with pytest.raises(ChatError, match=r"functionary-v3\.2 dialect has no reasoning to limit"):
        engine.chat(HELLO, GREEDY, reasoning_budget=3, **options)
    assert engine.chat(HELLO, GREEDY, reasoning_budget=budget(3), **options).tokens[3:6] == closing(engine)[:3]


def test_a_chat_has_log_probabilities_of_its_prompt(engine: Engine) -> None:
    asked = SamplingParams(temperature=0, max_tokens=6, prompt_logprobs=1)
    found = engine.chat(HELLO, asked, template=OPENED, dialect="hermes", reasoning_budget=2)
    assert found.prompt_logprobs is not None
    assert len(found.prompt_logprobs) == found.usage.prompt_tokens


CLOCK = {"name": "clock", "parameters": {"type": "object", "properties": {}, "additionalProperties": False}}
FORCED: dict[str, Any] = {"tools": [CLOCK], "tool_choice": "required", "parallel_tool_calls": False}


@pytest.mark.parametrize("dialect", ["hermes", "qwen3-coder"])
@pytest.mark.parametrize("n", [0, 6])
def test_a_chat_reasons_and_then_calls(engine: Engine, dialect: str, n: int) -> None:
    params = SamplingParams(temperature=0, max_tokens=60)
    template = "{% for tool in tools %}{{ tool.function.name }}\n{% endfor %}" + OPENED
    found = engine.chat(HELLO, params, template=template, dialect=dialect, reasoning_budget=n, **FORCED)
    assert bool(found.reasoning) == (n > 0)
    assert found.tokens[n : n + 2] == closing(engine, "</think>")[:2]
    assert [(call.name, call.arguments) for call in found.tool_calls] == [("clock", {})]
    assert not found.content


def test_a_dialect_whose_calls_cannot_be_told_from_its_reasoning(engine: Engine) -> None:
    with pytest.raises(ConfigError, match="in the harmony dialect cannot have a reasoning_budget too"):
        engine.chat(HELLO, GREEDY, template=OPENED, dialect="harmony", reasoning_budget=3, **FORCED)


def test_a_chat_reasons_and_then_answers_in_a_format(engine: Engine) -> None:
    params = SamplingParams(temperature=0, max_tokens=60)
    found = engine.chat(HELLO, params, template=OPENED, dialect="hermes", format=SCHEMA, reasoning_budget=6)
    assert found.reasoning
    assert json.loads(found.content) == found.parsed
    assert found.parsed in ({"name": "Lily"}, {"name": "Tom"})


def test_a_chat_that_reasons_without_a_budget_does_not_reason_in_the_format(engine: Engine) -> None:
    params = SamplingParams(temperature=0, max_tokens=30)
    found = engine.chat(HELLO, params, template=OPENED, dialect="hermes", format=SCHEMA)
    plain = engine.chat(HELLO, params, template=OPENED, dialect="hermes")
    assert (found.reasoning, found.content) == (plain.reasoning, "")
    with pytest.raises(IncompleteError):
        _ = found.parsed
