"""GrammarCompiler: what is compiled once, kept and let go; copies that do not know of each other."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator
from functools import partial
from typing import Any
from unittest.mock import patch

import pytest
from llguidance import LLParserLimits

from ollama_engine import demo
from ollama_engine.errors import GrammarError, IncompleteError
from ollama_engine.sample.constraints import compiler as compiler_module
from ollama_engine.sample.constraints.compiler import GrammarCompiler
from ollama_engine.sample.constraints.formats import Choice, Lark, Regex
from ollama_engine.tokenizer import Tokenizer, from_gguf
from tests.support.waiting import join


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return from_gguf(demo.path())


@pytest.fixture
def compiled() -> Iterator[list[Any]]:
    """The sources that were compiled."""
    found: list[Any] = []
    plain = compiler_module.compile_source

    def noted(source: Any, tokenizer: Any) -> Any:
        found.append(source)
        return plain(source, tokenizer)

    with patch.object(compiler_module, "compile_source", noted):
        yield found


def test_equal_formats_are_compiled_once(tokenizer: Tokenizer, compiled: list[Any]) -> None:
    compiler = GrammarCompiler(tokenizer, tokenizer.n_vocab)
    for _ in range(3):
        compiler.constraint({"type": "integer"})
        compiler.constraint(Choice(["a", "b"]))
        compiler.constraint(int)
        compiler.constraint("json")
    assert len(compiled) == 4
    compiler.constraint(Choice(["b", "a"]))
    compiler.constraint({"type": "integer", "minimum": 0})
    assert len(compiled) == 6


def test_the_order_of_properties_counts(tokenizer: Tokenizer, compiled: list[Any]) -> None:
    compiler = GrammarCompiler(tokenizer, tokenizer.n_vocab)
    for names in ("ab", "ba"):
        compiler.constraint({"properties": {name: {"type": "integer"} for name in names}})
    assert len(compiled) == 2


@pytest.mark.parametrize(("limit", "value"), [("MOST_ENTRIES", 3), ("MOST_CHARACTERS", 150)])
def test_the_least_recently_used_goes(
    tokenizer: Tokenizer, compiled: list[Any], monkeypatch: pytest.MonkeyPatch, limit: str, value: int
) -> None:
    monkeypatch.setattr(compiler_module, limit, value)
    compiler = GrammarCompiler(tokenizer, tokenizer.n_vocab)
    for text in ("one", "two", "one", "six", "one", "ten", "one"):
        compiler.constraint(Choice([text]))
    assert len(compiled) == 4
    compiler.constraint(Choice(["two"]))
    assert len(compiled) == 5
    assert len(compiler._compiled) <= 3
    assert compiler._characters == sum(len(each.source.text) for each in compiler._compiled.values())


def test_what_cannot_be_compiled_is_not_kept(tokenizer: Tokenizer) -> None:
    compiler = GrammarCompiler(tokenizer, tokenizer.n_vocab)
    for _ in range(2):
        with pytest.raises(GrammarError):
            compiler.constraint(Regex("("))
    assert not compiler._compiled


def test_constraints_of_one_grammar_go_their_own_ways(tokenizer: Tokenizer) -> None:
    compiler = GrammarCompiler(tokenizer, tokenizer.n_vocab)
    first, second = (compiler.constraint(Regex("[ab]x|[cd]y")) for _ in range(2))
    a, c = (tokenizer.encode(letter, add_special=False)[0] for letter in "ac")
    first.accept(a)
    second.accept(c)
    x, y = (tokenizer.encode(letter, add_special=False)[0] for letter in "xy")
    assert (first.mask()[x // 32] >> (x % 32) & 1, first.mask()[y // 32] >> (y % 32) & 1) == (1, 0)
    assert (second.mask()[x // 32] >> (x % 32) & 1, second.mask()[y // 32] >> (y % 32) & 1) == (0, 1)


def test_masks_made_side_by_side_are_those_made_alone(tokenizer: Tokenizer) -> None:
    compiler = GrammarCompiler(tokenizer, tokenizer.n_vocab)
    formats = [{"type": "object"}, Regex("[a-z]+"), Choice(["yes", "no"]), {"type": "string"}, Regex("a"), {}]
    alone = [compiler.constraint(each) for each in formats]
    together = [compiler.constraint(each) for each in formats]
    together[0].maker.make(together)
    for one_by_one, side_by_side in zip(alone, together, strict=True):
        assert (one_by_one.mask() == side_by_side.mask()).all()
        assert one_by_one.mask().any()


def test_an_error_is_told_when_the_mask_is_asked_for(tokenizer: Tokenizer) -> None:
    compiler = GrammarCompiler(tokenizer, tokenizer.n_vocab)
    good, bad = compiler.constraint(Regex("[a-z]+")), compiler.constraint(Regex("[a-z]+"))
    digit = tokenizer.encode("7", add_special=False)[0]
    with pytest.raises(GrammarError, match="cannot go on"):
        bad.accept(digit)
    good.maker.make([good, bad])
    assert good.mask().any()
    with pytest.raises(GrammarError, match="cannot go on"):
        bad.mask()
    assert not bad.ended


def test_an_answer_that_uses_up_the_states_of_its_grammar_ends_alone(tokenizer: Tokenizer) -> None:
    """Matchers of one grammar share the states of its lexer; others beside it, and later ones, go on."""
    limited = partial(compiler_module.LLMatcher, limits=LLParserLimits(max_lexer_states=3000))
    letter = tokenizer.encode("a", add_special=False)[0]
    with patch.object(compiler_module, "LLMatcher", limited):
        compiler = GrammarCompiler(tokenizer, tokenizer.n_vocab)
        endless, beside = (compiler.constraint(Regex("a{0,20000}")) for _ in range(2))
        beside.accept(letter)
        with pytest.raises(GrammarError, match=r"too large: after \d+ tokens .* more than 3000 states.*repeat less"):
            deque((endless.accept(letter) for _ in range(20_000) if endless.mask().any()), maxlen=0)
        assert (compiler.knows(Regex("a{0,20000}")), compiler._characters) == (False, 0)
        for constraint in (beside, compiler.constraint(Regex("a{0,20000}"))):
            assert constraint.mask()[letter // 32] >> (letter % 32) & 1
            constraint.accept(letter)
            assert constraint.foresee([letter]) == [(letter, False)]


@pytest.mark.parametrize(
    "given", [{"$ref": "#"}, Lark("start: start"), Regex("[a--a]"), Regex("x[a--a]")], ids=["$ref", "Lark", "", "x"]
)
def test_a_grammar_that_no_answer_can_fulfil(tokenizer: Tokenizer, given: Any) -> None:
    constraint = GrammarCompiler(tokenizer, tokenizer.n_vocab).constraint(given)
    with pytest.raises(GrammarError) as caught:
        constraint.mask()
    assert str(caught.value) == (
        "no answer can fulfil this grammar, from the first token on: a rule never ends, or allows nothing"
    )


def test_a_grammar_that_no_answer_can_go_on_in(tokenizer: Tokenizer) -> None:
    constraint = GrammarCompiler(tokenizer, tokenizer.n_vocab).constraint(Lark("start: /[ab]/ b\nb: b"))
    constraint.accept(tokenizer.encode("a", add_special=False)[0])
    with pytest.raises(GrammarError, match="no answer can fulfil this grammar, once this answer has begun"):
        constraint.mask()


def test_messages_leave_out_the_matchers_own_state(tokenizer: Tokenizer) -> None:
    compiler = GrammarCompiler(tokenizer, tokenizer.n_vocab)
    with pytest.raises(GrammarError, match="Too many items") as caught:
        compiler.constraint(Lark('start: "a" start')).mask()
    assert "<state>" not in str(caught.value)
    constraint = compiler.constraint(Regex("[a-z]+"))
    with pytest.raises(GrammarError, match="cannot go on") as caught:
        constraint.accept(tokenizer.encode("7", add_special=False)[0])
    assert "<state>" not in str(caught.value)


def test_a_forced_token_is_the_only_one(tokenizer: Tokenizer) -> None:
    constraint = GrammarCompiler(tokenizer, tokenizer.n_vocab).constraint(Regex("Once upon a time, [a-z]+"))
    assert len(constraint.forced) > 2
    token = constraint.forced[0]
    assert sum(int(word).bit_count() for word in constraint.mask()) == 1
    with pytest.raises(GrammarError, match="forces"):
        constraint.accept(token + 1)


def test_what_comes_if_guesses_are_right(tokenizer: Tokenizer) -> None:
    """Guesses, as far as they are allowed, and forced tokens between them; the answer stays where it is."""
    schema = {
        "type": "object", "additionalProperties": False, "required": ["town", "museums"],
        "properties": {"town": {"enum": ["Oslo", "Lima"]}, "museums": {"type": "integer", "maximum": 99}},
    }  # fmt: skip
    constraint = GrammarCompiler(tokenizer, tokenizer.n_vocab).constraint(schema)
    ids = tokenizer.encode('{"town": "Oslo", "museums": 31}', add_special=False, parse_special=False)
    forced = []
    while not constraint.ended:
        before, mask = list(constraint.forced), constraint.mask().copy()
        ahead = constraint.foresee(ids)
        assert (list(constraint.forced), constraint.mask().tolist()) == (before, mask.tolist())
        token = constraint.forced[0] if constraint.forced else ids[0]
        assert ahead[0] == (token, bool(before))
        forced.append(bool(before))
        if before and before[0] != ids[0]:
            assert ahead == [(each, True) for each in before]
        else:
            assert [each for each, _ in ahead[: len(ids)]] == ids
        constraint.accept(token)
        ids = ids[1:] if token == ids[0] else ids
    assert any(forced)
    assert not all(forced)


def test_guesses_that_a_grammar_forbids_are_cut(tokenizer: Tokenizer) -> None:
    constraint = GrammarCompiler(tokenizer, tokenizer.n_vocab).constraint(Regex("[a-z]+ or [0-9]+"))
    word, number = (tokenizer.encode(text, add_special=False)[-1] for text in ("a", "7"))
    assert constraint.foresee([word, number, word]) == [(word, False)]
    assert constraint.foresee([number, word]) == []


def test_an_answer_that_goes_on(tokenizer: Tokenizer) -> None:
    compiler = GrammarCompiler(tokenizer, tokenizer.n_vocab)
    ids = tokenizer.encode("[1, ", add_special=False)
    constraint = compiler.constraint({"type": "array", "items": {"type": "integer"}}, ids)
    assert constraint.answered == tuple(ids)
    rest = tokenizer.encode("2]", add_special=False)
    for token in rest:
        constraint.accept(token)
    assert constraint.ended
    assert constraint.reader(None).read("2]", rest) == [1, 2]
    with pytest.raises(IncompleteError, match="not whole, it was cut"):
        constraint.reader("it was cut").read("2]", rest)


def test_threads_make_the_vocabulary_once(tokenizer: Tokenizer) -> None:
    compiler = GrammarCompiler(tokenizer, tokenizer.n_vocab)
    made = []
    plain = compiler_module.make_vocabulary

    def noted(*args: Any) -> Any:
        made.append(args)
        return plain(*args)

    with patch.object(compiler_module, "make_vocabulary", noted):
        threads = [threading.Thread(target=compiler.constraint, args=(Choice(["a"]),)) for _ in range(6)]
        for thread in threads:
            thread.start()
        join(*threads)
    assert len(made) == 1


def test_without_llguidance_all_but_formats_runs() -> None:
    """Where no wheel of it can be installed: musl, or a Python without its lock."""
    code = """
import sys
sys.modules["llguidance"] = None
from ollama_engine import Engine, demo
from ollama_engine.errors import GrammarError
with Engine(demo.path(), threads=1, num_ctx=64) as engine:
    for _ in range(2):
        try:
            engine.generate("Once", max_tokens=2, format={"type": "boolean"})
        except GrammarError as error:
            print(error)
    print(engine.generate("Once", max_tokens=2).usage.completion_tokens)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    told = "format needs the package llguidance, which is not installed; pip install llguidance"
    assert done.stdout.splitlines() == [told, told, "2"]
