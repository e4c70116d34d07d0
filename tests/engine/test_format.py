"""`format`: answers that follow a schema or a grammar, whoever shares the batch and whatever else is asked for."""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import json
import re
import threading
import weakref
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from ollama_engine import Engine, SamplingParams, demo
from ollama_engine.errors import ConfigError, GrammarError, IncompleteError
from ollama_engine.runner.core.steered_rows import SteeredRows
from ollama_engine.sample.constraints import compiler as compiler_module
from ollama_engine.sample.constraints.formats import GBNF, Choice, Lark, Regex
from ollama_engine.sample.constraints.matcher import GrammarConstraint
from tests.support.engine_thread import idle

PERSON = {
    "type": "object",
    "properties": {
        "first_name": {"type": "string", "maxLength": 20},
        "age_in_years": {"type": "integer", "minimum": 0, "maximum": 120},
        "likes": {"enum": ["apples and pears", "bananas", "quinces"]},
    },
    "required": ["first_name", "age_in_years", "likes"],
}
MOSTLY_FIXED = Regex("(?:All of this is fixed but [a-c]{2}, and this too\\. ){3}")
PATIENCE = 50


@dataclasses.dataclass
class Person:
    name: str
    age: int


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine(demo.path(), num_ctx=300, parallel=4, threads=1, verify=True) as made:
        yield made


def drawn(seed: int = 3, **fields: Any) -> SamplingParams:
    return SamplingParams(**{"temperature": 1.3, "max_tokens": 90, "seed": seed, **fields})


def is_person(value: Any) -> bool:
    return set(value) == set(PERSON["properties"]) and 0 <= value["age_in_years"] <= 120  # type: ignore[arg-type]


# -- what comes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", [PERSON, json.dumps(PERSON)], ids=["dict", "text"])
@pytest.mark.parametrize("temperature", [0, 1.5])
def test_a_schema(engine: Engine, given: Any, temperature: float) -> None:
    answer = engine.generate("Once", drawn(temperature=temperature), format=given)
    assert answer.finish_reason == "stop"
    assert answer.parsed == json.loads(answer.text)
    assert is_person(answer.parsed)
    assert answer.usage.completion_tokens == len(answer.tokens)


def test_any_json(engine: Engine) -> None:
    answers = [engine.generate("Once", drawn(seed, temperature=2), format="json") for seed in range(6)]
    whole = [answer for answer in answers if answer.finish_reason == "stop"]
    assert all(isinstance(answer.parsed, dict) for answer in whole)
    assert all(answer.text.startswith("{") for answer in answers)


@pytest.mark.parametrize(
    ("given", "pattern"),
    [
        (Regex(r"[a-c]{3}/[0-9]{1,3}"), r"[a-c]{3}/[0-9]{1,3}"),
        (Choice(["yes", "no", 'may"be']), r'yes|no|may"be'),
        (Lark('start: "a" b\nb: "(" b ")" | "b"'), r"a\(*b\)*"),
        (GBNF('root ::= "a" b\nb ::= "(" b ")" | "b"'), r"a\(*b\)*"),
    ],
)
def test_other_grammars(engine: Engine, given: Any, pattern: str) -> None:
    for seed in range(4):
        answer = engine.generate("Once", drawn(seed), format=given)
        assert answer.finish_reason == "stop"
        assert re.fullmatch(pattern, answer.text)
        assert answer.parsed == answer.text


def test_a_type_gives_instances(engine: Engine) -> None:
    bounded = {"name": {"type": "string", "maxLength": 8}}
    with patch("pydantic.TypeAdapter.json_schema", return_value={**_schema_of_person(), "properties": bounded | {
        "age": {"type": "integer", "maximum": 9, "minimum": 0}}}):  # fmt: skip
        answer = engine.generate("Once", drawn(), format=Person)
    assert isinstance(answer.parsed, Person)


def _schema_of_person() -> dict[str, Any]:
    return {"type": "object", "required": ["name", "age"]}


def test_an_answer_ends_where_its_grammar_does(engine: Engine) -> None:
    """No step is spent on an end token; where more may come, the model decides."""
    never = dict.fromkeys(engine._open().tokenizer.eog_ids, float("-inf"))
    answer = engine.generate("Once", drawn(logit_bias=never), format=PERSON)
    assert answer.finish_reason == "stop"
    open_ended = engine.generate("Once", drawn(logit_bias=never), format=Regex("[a-z ]+"))
    assert open_ended.finish_reason == "length"
    assert len(open_ended.tokens) == 90
    assert engine.generate("Once", drawn(), format=Regex("")).text == ""


def test_an_answer_that_is_cut_off_has_no_value(engine: Engine) -> None:
    answer = engine.generate("Once", drawn(max_tokens=5), format=PERSON)
    assert answer.finish_reason == "length"
    with pytest.raises(IncompleteError, match="max_tokens or num_ctx was reached"):
        _ = answer.parsed
    number = engine.generate("Once", drawn(max_tokens=1), format={"type": "integer"})
    with pytest.raises(IncompleteError):  # a number that may have gone on
        _ = number.parsed
    stopped = engine.generate("Once", drawn(stop=["age"]), format=PERSON)
    assert stopped.finish_reason == "stop"
    with pytest.raises(IncompleteError, match="the stop text 'age' came"):
        _ = stopped.parsed


def test_without_a_format_there_is_no_value(engine: Engine) -> None:
    with pytest.raises(ConfigError, match="without format"):
        _ = engine.generate("Once", drawn(max_tokens=2)).parsed


def test_what_is_wrong_with_a_format_is_told_at_once(engine: Engine) -> None:
    with pytest.raises(GrammarError, match="/properties/a, keyword 'not'"):
        engine.stream("Once", format={"properties": {"a": {"not": {}}}})
    with pytest.raises(ConfigError, match="format is"):
        engine.submit("Once", format=3)  # type: ignore[arg-type]
    with pytest.raises(GrammarError):
        engine.generate(["Once", "Twice"], format=Regex("("))


# -- forced tokens -----------------------------------------------------------------------------------------------------


def one_by_one() -> Any:
    """Forced tokens are computed like others, one in each step."""
    return patch.object(SteeredRows, "_take_forced", lambda rows: False)


@pytest.mark.parametrize("given", [PERSON, MOSTLY_FIXED], ids=["schema", "regex"])
@pytest.mark.parametrize(
    "params",
    [drawn(), drawn(temperature=0), drawn(repeat_penalty=1.2, top_k=0), drawn(max_tokens=7), drawn(stop=["is", "lik"])],
    ids=["drawn", "greedy", "penalties", "cut", "stop text"],
)
@pytest.mark.parametrize("options", [{}, {"on_overflow": "shift", "num_keep": 3}], ids=["", "shift"])
def test_answers_are_the_same_one_by_one(
    engine: Engine, given: Any, params: SamplingParams, options: dict[str, Any]
) -> None:
    prompt = "Once upon a time " * (50 if options else 1)
    begin = engine.metrics.steps
    fast = engine.generate(prompt, params, format=given, cache=False, **options)
    middle = engine.metrics.steps
    with one_by_one():
        slow = engine.generate(prompt, params, format=given, cache=False, **options)
    assert (fast.tokens, fast.text, fast.finish_reason) == (slow.tokens, slow.text, slow.finish_reason)
    assert middle - begin < engine.metrics.steps - middle, "forced tokens take no steps of their own"
    assert fast.usage.shifted_tokens == slow.usage.shifted_tokens


def test_forced_tokens_are_those_of_the_tokenizer(engine: Engine) -> None:
    text = "All of this is fixed, and that too."
    answer = engine.generate("Once", drawn(), format=Regex(re.escape(text)))
    assert answer.text == text
    assert list(answer.tokens) == engine.tokenize(text, add_special=False)


def test_log_probabilities_of_forced_tokens(engine: Engine) -> None:
    """They are the model's, so each is computed."""
    plain = engine.generate("Once", drawn(), format=PERSON)
    answer = engine.generate("Once", drawn(logprobs=2), format=PERSON)
    assert answer.tokens == plain.tokens
    assert answer.logprobs is not None
    assert [entry.token for entry in answer.logprobs] == list(answer.tokens)
    rows = engine.logits([*engine.tokenize("Once"), *answer.tokens]).astype(np.float64)
    rows -= np.log(np.exp(rows).sum(axis=1, keepdims=True))
    n = len(engine.tokenize("Once"))
    expected = [rows[n - 1 + i, token] for i, token in enumerate(answer.tokens)]
    np.testing.assert_allclose([entry.logprob for entry in answer.logprobs], expected, atol=0.02)


# -- in company --------------------------------------------------------------------------------------------------------


def test_many_in_one_batch_beside_others(engine: Engine) -> None:
    """More requests than run at once, with and without formats; each gets what it gets alone."""
    formats = [PERSON, None, MOSTLY_FIXED, Choice(["yes", "no"]), None, {"type": "array", "items": {}, "maxItems": 2}]
    alone = [engine.generate("Once", drawn(i), format=each) for i, each in enumerate(formats)]
    requests = [engine.submit("Once", drawn(i), format=each) for i, each in enumerate(formats)]
    answers = [request.result(PATIENCE) for request in requests]
    assert [answer.text for answer in answers] == [answer.text for answer in alone]


def test_several_answers_of_one_call(engine: Engine) -> None:
    answers = engine.generate(["Once", "There was"], drawn(), n=3, format=PERSON)
    assert len(answers) == 6
    assert all(is_person(answer.parsed) for answer in answers)
    assert len({answer.text for answer in answers}) > 1


def test_a_fork_goes_on_in_the_grammar(engine: Engine) -> None:
    request = engine.submit("Once", drawn(), format=PERSON)
    for _ in range(4):
        next(request)
    forks = [engine.fork(request, drawn(seed)) for seed in range(3)]
    deeper = engine.fork(forks[0], drawn(9))
    begin = engine.detokenize(request.tokens)
    answers = [fork.result(PATIENCE) for fork in (*forks, deeper)]
    whole = request.result(PATIENCE)
    assert is_person(whole.parsed)
    for answer in answers:
        assert answer.finish_reason == "stop"
        assert answer.parsed == json.loads(begin + answer.text)
        assert is_person(answer.parsed)
    ended = engine.fork(request, drawn()).result(PATIENCE)
    assert (ended.text, ended.parsed) == ("", whole.parsed)


def test_a_fork_with_a_format_of_its_own(engine: Engine) -> None:
    request = engine.submit("Once", drawn(), format=PERSON)
    next(request)
    assert engine.fork(request, format=Choice(["yes"])).result(PATIENCE).parsed == "yes"
    free = engine.fork(request, drawn(max_tokens=4), format=None).result(PATIENCE)
    with pytest.raises(ConfigError):
        _ = free.parsed
    request.cancel()


def test_sessions(engine: Engine) -> None:
    with engine.session() as session:
        session.append("Once upon a time")
        first = session.generate(drawn(), format=PERSON)
        assert is_person(first.parsed)
        assert session.text.endswith(first.text)
        with session.stream(drawn(4), format=PERSON) as stream:
            begun = next(stream).text
        again = session.generate(drawn(5), format=Choice(["yes", "no"]))
        assert again.parsed in ("yes", "no")
        assert session.text.endswith(begun + again.text)


def test_asyncio(engine: Engine) -> None:
    async def ask() -> list[Any]:
        several = [engine.agenerate("Once", drawn(seed), format=PERSON) for seed in range(5)]
        completions = [answer.parsed for answer in await asyncio.gather(*several)]
        return [*completions, (await engine.astream("Once", drawn(), format=PERSON).completion()).parsed]

    assert all(map(is_person, asyncio.run(ask())))


@pytest.fixture
def waiting_compiler(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Nothing is compiled before this is set, which an event loop that waits for the compiler cannot do."""
    may_compile = threading.Event()
    plain = compiler_module.compile_source

    def compile_later(source: Any, tokenizer: Any) -> Any:
        assert may_compile.wait(5), "nobody came to set it"
        return plain(source, tokenizer)

    monkeypatch.setattr(compiler_module, "compile_source", compile_later)
    return may_compile


ASKING: dict[str, Any] = {
    "agenerate": lambda engine, form: engine.agenerate("Once", drawn(), format=form),
    "agenerate, n": lambda engine, form: engine.agenerate("Once", drawn(), n=1, format=form),
    "astream": lambda engine, form: engine.astream("Once", drawn(), format=form).completion(),
    "achat": lambda engine, form: engine.achat(MESSAGES, drawn(), template=PLAIN, format=form),
}


@pytest.mark.parametrize("way", ASKING)
def test_the_event_loop_goes_on_while_a_format_is_compiled(
    engine: Engine, waiting_compiler: threading.Event, way: str
) -> None:
    form = Choice([f"yes, {way}", f"no, {way}"])

    async def ask() -> list[Any]:
        asyncio.get_running_loop().call_later(0.05, waiting_compiler.set)
        first = await asyncio.wait_for(ASKING[way](engine, form), PATIENCE)
        waiting_compiler.clear()  # what is compiled already starts at once
        return [first, await asyncio.wait_for(ASKING[way](engine, form), PATIENCE)]

    for found in asyncio.run(ask()):
        answer = found[0] if isinstance(found, list) else found
        assert answer.parsed in form.choices


@pytest.mark.parametrize("way", ASKING)
def test_what_is_wrong_with_a_format_is_told_in_asyncio(engine: Engine, way: str) -> None:
    async def ask(form: Any) -> None:
        await asyncio.wait_for(ASKING[way](engine, form), PATIENCE)

    with pytest.raises(GrammarError, match="/properties/a, keyword 'not'"):
        asyncio.run(ask({"properties": {"a": {"not": {}}}}))
    with pytest.raises(ConfigError, match="format is"):
        asyncio.run(ask(3))


@pytest.mark.parametrize("way", ["aclose", "drop", "cancel"])
def test_a_stream_that_ends_while_its_format_is_compiled(
    engine: Engine, waiting_compiler: threading.Event, way: str
) -> None:
    """The request may still come, and is cancelled then; the engine goes on."""

    async def ask() -> None:
        stream: Any = engine.astream("Once", drawn(max_tokens=250), format=Regex(f"[a-z]{{200}}{way}"))
        task = asyncio.create_task(anext(stream)) if way == "cancel" else None
        await asyncio.sleep(0.05)
        if way == "aclose":
            await stream.aclose()
            assert [chunk async for chunk in stream] == []
        elif task is not None:
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        else:
            gone = weakref.ref(stream)
            del stream
            assert gone() is None, "what compiles does not hold the stream"
        waiting_compiler.set()

    asyncio.run(ask())
    assert engine.generate("Once", drawn(), format=Choice(["yes"])).text == "yes"
    idle(engine)


def test_formats_are_compiled_in_many_threads_at_once() -> None:
    with Engine(demo.path(), num_ctx=200, parallel=4, threads=1) as engine:
        found: list[Any] = []

        def ask(seed: int) -> None:
            schema = {"type": "object", "properties": {f"n{seed % 3}": {"enum": [1, 2]}}, "required": [f"n{seed % 3}"]}
            found.append(engine.generate("Once", drawn(seed), format=schema).parsed)

        threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(9)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
        assert sorted(next(iter(value)) for value in found) == sorted(f"n{i % 3}" for i in range(9))


def test_preempted_answers_go_on_where_they_were() -> None:
    """Too few cells for all: some are computed again from their tokens."""
    with Engine(demo.path(), num_ctx=128, parallel=2, threads=1, verify=True) as engine:
        alone = [engine.generate("Once " * 40, drawn(i, max_tokens=80), format=PERSON) for i in range(4)]
        sessions = [engine.session() for _ in range(1)]
        for session in sessions:
            session.append("There was " * 30)
        requests = [engine.submit("Once " * 40, drawn(i, max_tokens=80), format=PERSON) for i in range(4)]
        answers = [request.result(PATIENCE) for request in requests]
        assert [answer.text for answer in answers] == [answer.text for answer in alone]
        for session in sessions:
            session.close()


# -- chats -------------------------------------------------------------------------------------------------------------

PLAIN = "{% for m in messages %}{{ m.content }}\n{% endfor %}"
MESSAGES = [{"role": "user", "content": "Once upon a time there was"}]


def test_a_chat(engine: Engine) -> None:
    answer = engine.chat(MESSAGES, drawn(), template=PLAIN, format=PERSON)
    assert is_person(answer.parsed)
    assert json.loads(answer.content) == answer.parsed
    with engine.chat_stream(MESSAGES, drawn(), template=PLAIN, format=PERSON) as stream:
        chunks = list(stream)
    assert json.loads("".join(chunk.content for chunk in chunks)) == answer.parsed


def test_reasoning_comes_before_the_form(engine: Engine) -> None:
    """Where the prompt has opened it, the form is that of what follows."""
    opened = PLAIN + "<think>"
    thinking = engine.chat(MESSAGES, drawn(max_tokens=12), template=opened, format=PERSON)
    assert (thinking.finish_reason, thinking.content) == ("length", "")
    assert thinking.reasoning
    with pytest.raises(IncompleteError):
        _ = thinking.parsed
    answer = engine.chat(MESSAGES, drawn(), template=opened, format=PERSON, reasoning_budget=5)
    assert answer.reasoning
    assert is_person(answer.parsed)


# -- what goes wrong ---------------------------------------------------------------------------------------------------


def test_a_matcher_that_fails_ends_its_request_alone(engine: Engine) -> None:
    accept, count = GrammarConstraint.accept, 0

    def broken(self: GrammarConstraint, token: int) -> None:
        nonlocal count
        count += 1
        accept(self, engine._open().tokenizer.n_vocab - 1 if count == 3 else token)

    others = [engine.submit("Once", drawn(max_tokens=40)) for _ in range(2)]
    with patch.object(GrammarConstraint, "accept", broken), pytest.raises(GrammarError, match=r"cannot go on|forces"):
        engine.generate("Once", drawn(), format=PERSON)
    assert others[0].result(PATIENCE).tokens == others[1].result(PATIENCE).tokens
    assert is_person(engine.generate("Once", drawn(), format=PERSON).parsed)


def test_an_engine_with_formats_is_freed() -> None:
    made = Engine(demo.path(), num_ctx=64, threads=1)
    made.generate("Once", drawn(max_tokens=5), format=PERSON)
    assert made._submission._grammars is not None
    gone = weakref.ref(made._submission._grammars)
    made.close()
    del made
    gc.collect()
    assert gone() is None
