"""GBNF: every text that a grammar of this notation has, and no other; compared with a reader that tries all ways."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from functools import cache
from random import Random
from string import ascii_lowercase
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ollama_engine.errors import GrammarError
from ollama_engine.sample.constraints import gbnf
from ollama_engine.sample.constraints.formats import GBNF
from ollama_engine.sample.constraints.gbnf import MOST_PARTS
from ollama_engine.sample.constraints.gbnf_lark import lark_of
from ollama_engine.sample.constraints.gbnf_recursion import on_cycles
from tests.sample.constraints.accepting import accepts, matcher
from tests.support.suite import scaled

JSON = r"""
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::=
  "{" ws (
            string ":" ws value
    ("," ws string ":" ws value)*
  )? "}" ws  # as usual
array  ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::= "\"" ( [^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) )* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws
ws     ::= | " " | "\n" [ \t]{0,20}
"""

CASES: list[tuple[str, list[str], list[str]]] = [
    ('root ::= "a" | "b"', ["a", "b"], ["", "ab"]),
    ('root ::= [a-z]+ "b"', ["ab", "abb"], ["b", "a"]),
    ('root ::= "a" x? "c"\nx ::= "(" x ")" | [a-c]+', ["aabcc", "a(a)c", "ac", "a((cc))c"], ["a(c", "(a)"]),
    ('root ::= x\nx ::= "if" | [a-z]+ "!" | "(" x ")"', ["if", "ifx!", "if!", "((abc!))"], ["ifx", "(if!"]),
    ('root ::= s\ns ::= [a-z]* "b" s? ";"', ["b;", "abbb;;", "abab;;"], ["a;", "b"]),
    (r'root ::= "\x41" "\u00e9" "\U0001F600" "\"" "\n" [\]\-a^]', ['Aé😀"\n]', 'Aé😀"\n-', 'Aé😀"\n^'], ['Aé😀"\n[']),
    (r'root ::= [^\n"]{2,3} .', ["abc", "ab\n", "日本語é"], ["a\n", '"bc']),
    ('root ::= "" | x\nx ::= "a" x? "z"', ["", "az", "aazz"], ["a", "aaz"]),
    ('root ::= ( "a"\n | "b" )\n  | "c"', ["a", "b", "c"], ["d"]),
    ('root ::= item{2}\nitem ::= "- " [^\\n]+ "\\n"', ["- a\n- b\n"], ["- a\n"]),
    ('root ::= ("a"?)* "b"', ["b", "aab"], ["a"]),
    (JSON, ['{"a":[1,2.5,-3e1,true,null,{"b":"x\\\\y"}]}', "{}", '{\n  "x": {}\n}'], ["[1]", '{"a":01}', '{"a":1']),
]


@pytest.mark.parametrize(("grammar", "good", "bad"), CASES, ids=lambda case: str(case)[:30])
def test_texts_of_a_grammar(grammar: str, good: list[str], bad: list[str]) -> None:
    made = matcher(GBNF(grammar))
    assert [text for text in good if not accepts(made, text)] == []
    assert [text for text in bad if accepts(made, text)] == []


@pytest.mark.parametrize(
    ("grammar", "told"),
    [
        ("root ::= x", "line 1, column 10, 'root ::= x': there is no rule x"),
        ('root = "a"', "line 1, column 6"),
        ('root ::= "a', "cannot be read"),
        ("root ::= [z-a]", "lower character"),
        ('root ::= ("a"', "not closed"),
        ('root ::= "a"{,3}', "expected {number}"),
        ('root ::= "a"{3,2}', "the lower one first"),
        (r'root ::= "\q"', r"unknown escape \\q"),
        (r'root ::= "\ud800"', "no character"),
        ('x ::= "a"', "there is no rule `root`"),
        ('root ::= "a"\nroot ::= "b"', "line 2, column 1, .* twice"),
        ("root ::= !<a>", "not supported"),
        ('root ::= "a" )', "expected the end of the rule"),
        ("root ::= " + "(" * 150 + '"a"' + ")" * 150, "nested"),
        ("root ::= a\n" + "".join(f"{x} ::= {' '.join(y * 6)}\n" for x, y in itertools.pairwise("abcdefgh"))
         + 'h ::= "x"', "too large"),
        (f'root ::= "{"x" * 1500}"', "too long"),
        ("root ::= " + '"a" ' * 1500, "too long"),
        ("".join(f"r{i} ::= r{i + 1} r{i + 1}\n" for i in range(10)) + 'r10 ::= "a"\nroot ::= r0', "too long"),
    ],
    ids=lambda case: str(case)[:30],
)  # fmt: skip
def test_what_cannot_be_read(grammar: str, told: str) -> None:
    with pytest.raises(GrammarError, match=told):
        matcher(GBNF(grammar))


# -- random grammars ---------------------------------------------------------------------------------------------------

LETTERS = "abc"


def expressions(names: list[str]) -> st.SearchStrategy[str]:
    leaves = st.one_of(
        st.text(LETTERS, max_size=2).map(lambda text: f'"{text}"'),
        st.sampled_from(["[ab]", "[^a]", "[a-c]", "[b-c]"]),
        st.sampled_from(names),
    )
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.lists(inner, min_size=1, max_size=3).map(" ".join),
            st.lists(inner, min_size=2, max_size=3).map(lambda many: f"({' | '.join(many)})"),
            st.builds("({}){}".format, inner, st.sampled_from(["*", "+", "?", "{2}", "{1,2}", "{1,}"])),
        ),
        max_leaves=6,
    )  # fmt: skip


@st.composite
def grammars(draw: st.DrawFn) -> str:
    names = ["root", "x", "y"]
    return "".join(f"{name} ::= {draw(expressions(names))}\n" for name in names)


def ends(rules: dict[str, Any], text: str) -> set[int]:
    """Where `root` may end that begins where the text does: all ways, by Kleene's fixed point."""
    n = len(text)
    found: dict[tuple[str, int], set[int]] = {(name, i): set() for name in rules for i in range(n + 1)}

    def walk(e: Any, at: int) -> set[int]:
        if isinstance(e, gbnf.Characters):
            return {at + 1} if at < n and any(low <= ord(text[at]) <= high for low, high in e.ranges) else set()
        if isinstance(e, gbnf.Reference):
            return found[e.rule, at]
        if isinstance(e, gbnf.Alternatives):
            return set().union(*(walk(each, at) for each in e.choices))
        parts = e.parts if isinstance(e, gbnf.Concatenation) else [e.inner] * e.low
        reached = {at}
        for part in parts:
            reached = set().union(*(walk(part, i) for i in reached))
        if isinstance(e, gbnf.Repeat):
            more = n + 1 if e.high is None else e.high - e.low
            for _ in range(more):
                reached = reached.union(*(walk(e.inner, i) for i in reached))
        return reached

    changed = True
    while changed:
        changed = False
        for (name, i), before in found.items():
            now = walk(rules[name], i)
            changed |= now != before
            found[name, i] = now
    return found["root", 0]


def is_nullable(e: Any, empty: set[str]) -> bool:
    """Whether `e` may be the empty text, as the rules `empty` may."""
    if isinstance(e, gbnf.Reference):
        return e.rule in empty
    if isinstance(e, gbnf.Alternatives):
        return any(is_nullable(each, empty) for each in e.choices)
    if isinstance(e, gbnf.Repeat):
        return e.low == 0 or is_nullable(e.inner, empty)
    return isinstance(e, gbnf.Concatenation) and all(is_nullable(each, empty) for each in e.parts)


def has_left_recursion(rules: dict[str, Any]) -> bool:
    """Whether a rule may begin with itself; llama.cpp refuses such grammars."""
    empty: set[str] = set()

    def begins(e: Any) -> set[str]:
        """Rules that `e` may begin with; behind a part that may be empty, those of the next one too."""
        if isinstance(e, gbnf.Reference):
            return {e.rule}
        if isinstance(e, gbnf.Alternatives):
            return set().union(*(begins(each) for each in e.choices))
        if isinstance(e, gbnf.Repeat):
            return begins(e.inner)
        found: set[str] = set()
        for part in e.parts if isinstance(e, gbnf.Concatenation) else ():
            found |= begins(part)
            if not is_nullable(part, empty):
                break
        return found

    for _ in rules:
        empty |= {name for name, rule in rules.items() if is_nullable(rule, empty)}
    reached = {name: begins(rule) for name, rule in rules.items()}
    for _ in rules:
        reached = {name: found.union(*(reached[each] for each in found)) for name, found in reached.items()}
    return any(name in found for name, found in reached.items())


@cache
def texts() -> list[str]:
    return ["".join(letters) for n in range(5) for letters in itertools.product(LETTERS, repeat=n)]


@pytest.mark.timeout(180)  # 400 grammars, each with all texts of up to 4 letters
@settings(max_examples=scaled(400, quick=25), derandomize=True, suppress_health_check=list(HealthCheck))
@given(grammars())
def test_random_grammars(grammar: str) -> None:
    rules = gbnf.read_rules(grammar)
    expected = {text for text in texts() if len(text) in ends(rules, text)}
    if has_left_recursion(rules):
        with pytest.raises(GrammarError, match="begins with itself"):
            matcher(GBNF(grammar))
        return
    try:
        made = matcher(GBNF(grammar))
        taken = {text for text in texts() if accepts(made, text)}
    except GrammarError:
        taken = set()  # it has no text at all
    assert taken == expected, grammar


def calls(grammar: str) -> int:
    """Functions that are called to read and check a grammar, C's included: its work, on any machine."""
    n = 0

    def count(*_: object) -> None:
        nonlocal n
        n += 1

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        lark_of(grammar)
    finally:
        sys.setprofile(before)
    return n


def chained(n: int, inner: str) -> str:
    rules = "".join(f"r{i} ::= {inner} r{i + 1}\n" for i in range(n))
    return f'root ::= "(" root ")" | r0\n{rules}r{n} ::= "" | "b"\n'


@pytest.mark.parametrize("grammar", [
    lambda n: chained(n, ""),
    lambda n: chained(n, '"a"'),
    lambda n: "root ::= " + " | ".join(f'"{chr(0x4E00 + 2 * i)}"' for i in range(n)),
    lambda n: f"root ::= [{''.join(chr(0x4E00 + 2 * i) for i in range(n))}]",
    lambda n: 'root ::= "a"\n' + "".join(f'r{i} ::= "a" | "b" r{i}\n' for i in range(n)),
], ids=["empty chain", "chain", "characters", "set", "unused rules"])  # fmt: skip
def test_the_work_grows_with_the_grammar(grammar: Callable[[int], str]) -> None:
    """It grew with the square: 5,000 characters took half a minute."""
    lark_of("root ::= [a]")  # imports
    once, twice = calls(grammar(150)), calls(grammar(300))
    assert twice < 2.5 * once


@pytest.mark.parametrize(("grammar", "told"), [
    ("root ::= " + "x " * MOST_PARTS + '\nx ::= "a"', "more than 20000 words"),
    ('root ::= "' + "a" * MOST_PARTS + '"', "more than 20000 words"),
    (f"root ::= [{'a' * MOST_PARTS}]", "more than 20000 words"),
    ('root ::= "b" | ((("x" root "a"){2000}){2000}){2000}', "takes too long to check"),
    ('root ::= "(" root ")" | ' + " | ".join(f'"w{i}" root "x"' for i in range(600)), "takes too long to check"),
    ('root ::= "(" root ")" | [^a]{2000} root "x" | [^b]{2000} root "y"', "takes too long to check"),
], ids=["names", "text", "set", "repeats", "overlaps", "long overlaps"])  # fmt: skip
def test_grammars_that_would_take_too_long(grammar: str, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ollama_engine.sample.constraints.gbnf_lark.MOST_STEPS", 10_000)
    with pytest.raises(GrammarError, match=told):
        lark_of(grammar)


def test_a_list_of_many_names_is_no_long_check() -> None:
    """Most pairs of them begin with different characters; 500 took more steps than there are."""
    draw = Random(1)
    names = ["".join(draw.choices(ascii_lowercase, k=draw.randint(4, 12))) for _ in range(500)]
    lark_of('root ::= name ("," name)*\nname ::= ' + " | ".join(f'"{name}"' for name in names))


@pytest.mark.parametrize(("graph", "expected"), [
    ({"a": "b", "b": "c", "c": ""}, ""), ({"a": "a"}, "a"), ({"a": "b", "b": "a", "c": "a"}, "ab"),
    ({"a": "bc", "b": "d", "c": "d", "d": "e", "e": "d"}, "de"), ({"a": "b", "b": "cd", "c": "a", "d": "d"}, "abcd"),
    ({"a": "", "b": "a", "c": "bc", "d": "ce", "e": "d"}, "cde"),
])  # fmt: skip
def test_nodes_on_cycles(graph: dict[str, str], expected: str) -> None:
    assert on_cycles(graph) == set(expected)
