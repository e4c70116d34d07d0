"""Regex, Choice, Lark and Python types."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import json
import re
import string
import sys
from decimal import Decimal
from functools import cache
from ipaddress import IPv4Network
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llguidance import LLMatcher
from pydantic import (
    BaseModel,
    Field,
    FileUrl,
    HttpUrl,
    MySQLDsn,
    RedisDsn,
    SecretStr,
    TypeAdapter,
    UrlConstraints,
    ValidationError,
    WebsocketUrl,
)
from typing_extensions import NotRequired, TypedDict

from ollama_engine.errors import ConfigError, GrammarError
from ollama_engine.sample.constraints.formats import GBNF, Choice, Lark, Regex
from ollama_engine.sample.constraints.source import read_format
from tests.sample.constraints.accepting import accepts, matcher


@pytest.mark.parametrize(
    ("pattern", "good", "bad"),
    [
        (r"a/b", ["a/b"], ["ab"]),
        (r"a\/b", ["a/b"], [r"a\/b"]),
        ("a\nb", ["a\nb"], ["ab"]),
        (r"[a-c]{2,3}|\d+", ["ab", "abc", "7"], ["a", "abcd", "7a"]),
        (r"(?i)yes", ["YES", "yes"], ["no"]),
        (r"", [""], ["a"]),
        (r"\"\\", ['"\\'], ["x"]),
        (r"(?s:.)x", ["\nx", "éx"], ["x"]),
    ],
)
def test_a_regular_expression(pattern: str, good: list[str], bad: list[str]) -> None:
    made = matcher(Regex(pattern))
    assert [text for text in good if not accepts(made, text)] == []
    assert [text for text in bad if accepts(made, text)] == []


def test_choices_are_texts_as_they_stand() -> None:
    texts = [string.printable, "a\x00b", "日本\u2028", "\\n", "a|b", '"', "a b", "<|end|>", "/x/", "\x7f"]
    made = matcher(Choice(texts))
    assert all(accepts(made, text) for text in texts)
    assert not any(accepts(made, text) for text in ("a", "b", "\n", string.printable + "x", ""))


def test_a_choice_that_begins_another() -> None:
    made = matcher(Choice(["yes", "yes, sir", "no"]))
    taken = [text for text in ("yes", "yes, sir", "no", "yes,", "nos") if accepts(made, text)]
    assert taken == ["yes", "yes, sir", "no"]


@pytest.mark.parametrize("bad", ["yes", [], ["a", ""], ["a", 3], 3, [None], b"ab", ["\ud800"]])
def test_what_are_no_choices(bad: Any) -> None:
    with pytest.raises(ConfigError, match="Choice takes"):
        Choice(bad)


@pytest.mark.parametrize("kind", [Regex, Lark, GBNF])
def test_what_is_no_text(kind: Any) -> None:
    with pytest.raises(ConfigError, match=f"{kind.__name__} takes a str, got bytes"):
        kind(b"a")


@pytest.mark.parametrize("kind", [Regex, Lark, GBNF])
def test_lone_surrogates(kind: Any) -> None:
    with pytest.raises(ConfigError, match=f"{kind.__name__} takes a text without lone surrogates, got "):
        kind('root ::= "\udc80"')


@pytest.mark.parametrize(
    "bad", [Regex("("), Regex("(?=a)b"), Regex(r"(a)\1"), Lark("start: undefined"), Lark("x"), Lark("")]
)
def test_what_cannot_be_compiled(bad: Any) -> None:
    with pytest.raises(GrammarError, match="cannot be used"):
        matcher(bad)


def test_a_schema_in_lark_is_checked_like_any_other() -> None:
    schema = '{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}'
    made = matcher(Lark(f'start: "call " arguments\narguments: %json {schema}'))
    assert accepts(made, 'call {"a": 1}')
    for white in (" ", "\n", "\n" + 16 * " ", "\n" + 8 * "\t"):
        assert accepts(made, f'call {{{white}"a"{white}:{white}1{white}}}')
    for more in ("  ", "\t", "\n\n", " \n", "\n" + 17 * " ", "\n" + 9 * "\t", "\n \t"):
        assert not accepts(made, f'call {{{more}"a": 1}}')
    assert not accepts(made, 'call {"a": 1, "b": 2}')
    assert not accepts(made, 'call {\n\n\n"a": 1}')
    with pytest.raises(GrammarError, match="'uniqueItems' is not supported") as caught:
        matcher(Lark('start: %json {"items": {"uniqueItems": true}}'))
    assert caught.value.pointer == "/items"


# -- Python types ------------------------------------------------------------------------------------------------------


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Pet(BaseModel):
    name: str
    color: Color = Color.RED
    born: datetime.date
    legs: Annotated[int, Field(ge=0, le=8)]
    friends: list[Pet] = []


@dataclasses.dataclass
class Point:
    x: int
    y: float = 0.5


class Size(enum.IntEnum):
    S = 1
    M = 2


class Closet(BaseModel):
    size: Size
    sizes: dict[Size, list[Closet]] = {}


DECIMALS = st.sampled_from(
    [
        Decimal,
        Annotated[Decimal, Field(max_digits=6, decimal_places=2)],
        Annotated[Decimal, Field(max_digits=20, decimal_places=2)],
        Annotated[Decimal, Field(max_digits=4, gt=0)],
        Annotated[Decimal, Field(max_digits=9, decimal_places=8)],
        Annotated[Decimal, Field(decimal_places=9)],
        Annotated[Decimal, Field(gt=0, le=Decimal("2.5"), decimal_places=3)],
    ]
)


@cache
def _kept_matcher(kind: Any) -> LLMatcher:
    return matcher(kind)


class Trip(TypedDict):
    to: Literal["Paris", "Rome"]
    days: NotRequired[int]


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (Point, '{"x": 3}', Point(3)),
        (Trip, '{"to":"Rome","days":3}', {"to": "Rome", "days": 3}),
        (list[int], "[1, 2]", [1, 2]),
        (dict[Color, int], '{"red":1}', {Color.RED: 1}),
        (tuple[int, str], '[1,"a"]', (1, "a")),
        (int, "12", 12),
        (bool, "true", True),
        (Literal["a", 1], '"a"', "a"),
        (Annotated[int, Field(gt=3)], "4", 4),
        (datetime.date, '"2024-02-29"', datetime.date(2024, 2, 29)),
    ],
    ids=str,
)
def test_a_type(kind: Any, text: str, value: Any) -> None:
    assert accepts(matcher(kind), text)
    read = read_format(kind).read(text)
    assert (read, type(read)) == (value, type(value))


def test_a_model() -> None:
    friend = '{"name":"M","born":"2020-02-29","legs":2}'
    text = f'{{"name":"Rex","color":"blue","born":"2020-01-01","legs":4,"friends":[{friend}]}}'
    made = matcher(Pet)
    assert accepts(made, text)
    assert not accepts(made, text.replace("legs", "arms"))
    assert not accepts(made, text.replace("4", "9"))
    read = read_format(Pet).read(text)
    assert isinstance(read, Pet)
    assert (read.color, read.friends[0].legs) == (Color.BLUE, 2)


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        (Decimal, ["-12.25", "7", "0.123", "9" * 15], ['"I am afraid."', '"7"', "1e400", "9" * 16]),
        (Annotated[Decimal, Field(max_digits=6, decimal_places=2)], ["9999.99", "-0.5"], ["10000", "0.125"]),
        (Annotated[Decimal, Field(max_digits=30, decimal_places=2)], ["9999999999999.99"], ["10000000000000"]),
        (Annotated[Decimal, Field(max_digits=4)], ["9999", "-99.99", "0.125"], ["10000", "12.345", "100.25"]),
        (Annotated[Decimal, Field(max_digits=4, ge=1000)], ["9999", "1000"], ["999.9", "1000.5", "10000"]),
        (Annotated[Decimal, Field(max_digits=9, decimal_places=8)], ["9.25", "0.5"], ["12.5"]),
        (Annotated[Decimal, Field(max_digits=2, decimal_places=5)], ["0.12"], ["0.123", "1.5"]),
        (Annotated[Decimal, Field(multiple_of=Decimal("0.025"), decimal_places=2)], ["0.05"], ["0.025", "0.01"]),
        (Annotated[Decimal, Field(max_digits=2, decimal_places=2, gt=0)], ["0.01", "0.99"], ["0", "0.0", "1", "-0.5"]),
        (Annotated[Decimal, Field(max_digits=3, gt=0)], ["999", "0.5"], ["0", "0.0", "-1"]),
        (Annotated[Decimal, Field(decimal_places=1, gt=Decimal("-0.25"), lt=2)], ["-0.2", "1.9"], ["-0.3", "2", "2.0"]),
        (Annotated[Decimal, Field(gt=0, lt=1)], ["0.5", "0.999"], ["0", "1", "1.5", "-0.5"]),
        (Annotated[Decimal, Field(ge=10**17, le=10**18)], [str(10**17), str(10**18)], ["7"]),
        (Annotated[Decimal, Field(multiple_of=Decimal("0.25"), ge=0)], ["0.75", "1"], ["0.7", "-1"]),
        (Annotated[Decimal, Field(decimal_places=0)], ["12"], ["12.5"]),
        (Annotated[Decimal, Field(decimal_places=12)], ["0.000001"], ["0.0000001"]),
        (set[int], ["[]", "[1,2]", "[1,1]"], ['["a"]']),
        (frozenset[Literal["a", "b"]], ['["b","a"]'], ['["c"]']),
        (dict[int, bool], ['{"-7":true}', "{}"], ['{"a":true}', '{"1.5":true}', '{"01":true}']),
        (dict[float, bool], ['{"1.5":true}', '{"2":true}'], ['{"a":true}', '{"1e9":true}']),
        (dict[Decimal, bool], ['{"1.5":true}'], ['{"a":true}']),
        (dict[bool, int], ['{"true":1}', '{"false":0}'], ['{"a":1}', '{"yes":1}']),
        (dict[str, bool], ['{"a":true}'], []),
        (dict[Annotated[str, Field(pattern="^[ab]+$")], bool], ['{"ab":true}'], ['{"c":true}', '{"c":1}']),
        (dict[int | None, bool], ['{"-7":true}'], ['{"null":true}', '{"":true}', '{"a":true}']),
        (dict[int | bool, bool], ['{"7":true,"false":true}'], ['{"a":true}', '{"7true":true}']),
        (dict[Literal["a.c"] | int, bool], ['{"a.c":true,"7":true}'], ['{"abc":true}']),
        (dict[str | int, bool], ['{"a":true,"7":true}'], []),
        (dict[Literal["a", 1], bool], ['{"a":true}'], ['{"1":true}']),
        (dict[Size, bool], ['{"1":true,"2":true}'], ['{"3":true}', '{"S":true}']),
        (list[Closet], ['[{"size":1,"sizes":{"2":[]}}]'], ['[{"size":1,"sizes":{"3":[]}}]']),
        (
            HttpUrl,
            ['"https://example.org/a?b"', '"http://u:p@a-b.c:65535#d"', '"http://10.0.0.255"'],
            [
                '"urn:a"',
                '"http://"',
                '"ftp://a.b"',
                '"http://a b"',
                '"http://999.1.1.1"',
                '"http://a.1"',
                '"http://08"',
                '"http://a:65536"',
                '"http://xn--a"',
                '"http://a%zz"',
            ],
        ),
        (FileUrl, ['"file:///etc/hosts"', '"file://a/b"'], ['"file://a:7/b"', '"file://"', '"http://a"']),
        (MySQLDsn, ['"mysql+pymysql://u:p@a:3306/b"'], ['"mysqll://a"']),
    ],
    ids=str,
)
def test_what_a_type_takes_can_be_read(kind: Any, good: list[str], bad: list[str]) -> None:
    """pydantic's own schemas of these allow texts that are no value of the type, or refuse all sets."""
    made, read = matcher(kind), read_format(kind).read
    assert [text for text in good if not accepts(made, text)] == []
    assert [text for text in bad if accepts(made, text)] == []
    for text in good:
        read(text)


@given(number=st.from_regex(r"-?(0|[1-9][0-9]{0,17})(\.[0-9]{1,14})?([eE][0-9]{1,3})?", fullmatch=True), kind=DECIMALS)
def test_a_decimal_that_is_taken_can_be_read(number: str, kind: Any) -> None:
    if accepts(_kept_matcher(kind), number):
        read_format(kind).read(number)


HOST_PARTS = st.sampled_from([*"019afx.-_:@%[]/?#", "xn--", "0x", "255", "256", "65536", "%41", "1.2.3.4"])


@given(
    text=st.lists(HOST_PARTS, max_size=12).map("".join),
    kind=st.sampled_from([(HttpUrl, "http"), (WebsocketUrl, "wss"), (RedisDsn, "redis"), (FileUrl, "file")]),
)
def test_an_address_that_is_taken_can_be_read(text: str, kind: tuple[Any, str]) -> None:
    address = f'"{kind[1]}://{text}"'
    if accepts(_kept_matcher(kind[0]), address):
        read_format(kind[0]).read(address)


@pytest.mark.parametrize("kind", [HttpUrl, WebsocketUrl, Annotated[HttpUrl, UrlConstraints(max_length=1000)]], ids=str)
def test_an_address_is_not_too_much_for_its_grammar(kind: Any) -> None:
    """Its pattern and its length at once: a limit of 2083 ended an answer, and all later ones in that grammar."""
    begun = matcher(kind)
    for text in ("http", "wss", "https://2", "http://2.a@b", "http://1.2.3.4:80/", "ws://a-b.c/d?e"):
        copy = begun.deep_copy()
        for byte in f'"{text}'.encode():
            if not copy.compute_bitmask()[byte // 8] >> byte % 8 & 1:
                break
            copy.consume_token(byte)
        copy.compute_bitmask()
        assert copy.get_error() == ""


@given(st.data())
def test_addresses_can_be_read(data: st.DataObject) -> None:
    pattern = (read_format(HttpUrl).schema or {})["pattern"]
    address = data.draw(st.from_regex(pattern, fullmatch=True, alphabet=st.characters(max_codepoint=126)))
    if accepts(_kept_matcher(HttpUrl), json.dumps(address)):
        read_format(HttpUrl).read(json.dumps(address))


@pytest.mark.parametrize("keys", [Literal[1, 2], None, tuple[int, int]], ids=str)
def test_keys_that_no_name_is_read_as(keys: Any) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(dict[keys, int]).validate_json('{"1":1,"null":1}')
    with pytest.raises(ConfigError, match=r"no schema can be made of dict.*: names of a JSON object are texts, and"):
        matcher(dict[keys, int])


@pytest.mark.parametrize(
    ("kind", "told"), [(Annotated[set[int], Field(min_length=2)], "uniqueItems"), (IPv4Network, "ipv4network")]
)
def test_types_that_no_grammar_is_made_of(kind: Any, told: str) -> None:
    with pytest.raises(GrammarError, match=told):
        matcher(kind)


@pytest.mark.parametrize("kind", [bytes, Path, SecretStr], ids=str)
def test_types_of_any_text(kind: Any) -> None:
    assert accepts(matcher(kind), '"a/b"')
    assert isinstance(read_format(kind).read('"a/b"'), kind)


def test_a_type_that_pydantic_does_not_know() -> None:
    class Odd:
        pass

    with pytest.raises(ConfigError, match=re.escape("no schema can be made of")):
        matcher(Odd)


def test_without_pydantic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pydantic", None)
    monkeypatch.delitem(sys.modules, "ollama_engine.sample.constraints.pydantic_schema", raising=False)
    with pytest.raises(ConfigError, match="pydantic makes the schema of Point, and is not installed; install it"):
        matcher(Point)
    assert accepts(matcher({"type": "integer"}), "1")
