"""JSON schemas: what is enforced, what is refused and where, what is read more strictly than written."""

from __future__ import annotations

import json
import time
import tracemalloc
from typing import Any

import pytest

from ollama_engine.errors import ConfigError, GrammarError
from ollama_engine.sample.constraints import schema as schema_module
from ollama_engine.sample.constraints.disjoint import Comparison
from ollama_engine.sample.constraints.schema import MOST_PROPERTIES, checked_schema
from ollama_engine.sample.constraints.schema_size import MOST_PATTERNS, MOST_SCHEMAS, MOST_TOGETHER
from tests.sample.constraints.accepting import accepts, matcher

OBJECT = {"type": "object", "properties": {"a": {"type": "integer"}, "b/c": {"type": "string"}}, "required": ["a"]}

REFUSED: list[tuple[Any, str, str | None]] = [
    ({"not": {"type": "integer"}}, "", "not"),
    ({"properties": {"a": {"items": {"uniqueItems": True}}}}, "/properties/a/items", "uniqueItems"),
    ({"properties": {"b/c": {"if": {}, "then": {}}}}, "/properties/b~1c", "if"),
    ({"anyOf": [{"type": "string"}, {"frobnicate": 1}]}, "/anyOf/1", "frobnicate"),
    ({"$ref": "#/$defs/x", "$defs": {"x": {"contains": {}}}}, "/$defs/x", "contains"),
    ({"$ref": "#/$defs/x"}, "", "$ref"),
    ({"$ref": "http://example.com/other"}, "", "$ref"),
    ({"type": "string", "format": "frob"}, "", "format"),
    ({"properties": {"when": {"type": "string", "pattern": "(?=a)b"}}}, "/properties/when", "pattern"),
    ({"items": {"type": "integer", "minimum": 5, "maximum": 3}, "minItems": 1, "type": "array"}, "/items", "minimum"),
    ({"type": "integer", "minimum": 5, "maximum": 3}, "", "minimum"),
    ({"type": "frob"}, "", "type"),
    ({"nullable": True, "type": "integer"}, "", "nullable"),
    ({"x-guidance": {"lenient": True}, "frob": 1}, "", "x-guidance"),
    ({"properties": {"a": {"x-guidance": {"coerce_one_of": True}}}}, "/properties/a", "x-guidance"),
    ({"oneOf": [{"type": "integer"}, {"minimum": 3}]}, "", "oneOf"),
    ({"oneOf": [{"properties": {"a": {}}}, {"properties": {"b": {}}}]}, "", "oneOf"),
    ({"type": "object", "minProperties": 2}, "", "minProperties"),
    ({"const": {"a": ["x\x01"]}}, "", "const"),
    ({"enum": ["\x7f"]}, "", "enum"),
    ({"properties": {"\x1f": {}}}, "", "properties"),
    ({"required": ["\ud800"]}, "", "required"),
    ({"properties": 3}, "", "properties"),
    ({"properties": {"a": 3}}, "/properties/a", None),
    ({"anyOf": {}}, "", "anyOf"),
    ({"propertyNames": {"minLength": 3}}, "", "propertyNames"),
    ({"propertyNames": {"format": "uuid"}}, "", "propertyNames"),
    ({"propertyNames": {"format": ["date"]}}, "", "propertyNames"),
    ({"contentEncoding": "base64"}, "", "contentEncoding"),
    ({"$defs": {"a": {"$id": "x", "$ref": "y"}}, "$ref": "#/$defs/a"}, "/$defs/a", "$ref"),
]


@pytest.mark.parametrize(("schema", "pointer", "keyword"), REFUSED, ids=lambda case: json.dumps(case)[:50])
def test_what_is_refused_is_named_with_its_place(schema: Any, pointer: str, keyword: str | None) -> None:
    with pytest.raises(GrammarError) as caught:
        matcher(schema)
    assert caught.value.pointer == pointer
    if keyword is not None:
        assert caught.value.keyword == keyword
        assert repr(keyword) in str(caught.value)
    assert (pointer or "the top level") in str(caught.value)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("given", ["", "jsn", "[1]", "{", 3, 1.5, None, b"json", [], object(), {"a": {1, 2}}])
def test_what_is_no_format(given: Any) -> None:
    with pytest.raises(ConfigError, match="format"):
        matcher(given)


def test_a_schema_that_is_no_json_is_told_where() -> None:
    with pytest.raises(ConfigError, match=r"a JSON schema that cannot be read: .* line 1 column 9 \(char 8\)"):
        matcher('{"type":')


def test_a_schema_that_contains_itself_as_a_dict_is_no_json() -> None:
    endless: dict[str, Any] = {}
    endless["items"] = endless
    with pytest.raises(ConfigError, match="no JSON schema"):
        matcher(endless)


def test_a_schema_that_is_nested_too_deeply_is_told_so() -> None:
    endless: dict[str, Any] = {}
    for _ in range(100_000):  # Python 3.13 writes 3,000
        endless = {"items": endless}
    with pytest.raises(ConfigError, match="nested too deeply; make it flatter"):
        matcher(endless)
    deep: dict[str, Any] = {}
    for _ in range(200):
        deep = {"items": deep, "type": "array"}
    with pytest.raises(GrammarError, match="deep"):
        matcher(deep)


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        (OBJECT, ['{"a":1}', '{"a": 1, "b/c": "x"}', '{\n  "a": 1\n}'], ['{"a":1,"z":2}', '{"b/c":"x"}', '{"a":"1"}']),
        ({**OBJECT, "additionalProperties": True}, ['{"a":1,"z":2}'], ['{"a":1,"b/c":2}', r'{"a":1,"b\/c":2}']),
        ({"type": "object", "properties": {}}, ["{}"], ['{"a":1}']),
        ({"type": "object"}, ['{"a":1}', "{}"], ["[]"]),
        ({}, ["1", '"x"', "[null]"], ["nul"]),
        ({"allOf": [{"properties": {"a": {}}}, {"properties": {"b": {}}}]}, ['{"a":1,"b":2}'], []),
        ({"$ref": "#/$defs/x", "required": ["q"], "properties": {"q": {}}, "$defs": {"x": {"properties": {"p": {}}}}},
         ['{"p":1,"q":1}'], ["{}"]),
        ({"type": "integer", "minimum": -3, "exclusiveMaximum": 12}, ["-3", "11", "0"], ["12", "-4", "1.5", "01"]),
        ({"type": "string", "maxLength": 2}, ['"日é"', '"\\n"', '""'], ['"abc"', r'"\u0041"']),
        ({"type": "array", "items": {"type": "boolean"}, "maxItems": 2.0}, ["[]", "[true]"], ["[true,true,true]"]),
        ({"uniqueItems": False, "nullable": False, "type": "array"}, ["[1,1]"], ["1"]),
        ({"oneOf": [{"const": 1}, {"const": True}, {"type": "string"}]}, ["1", "true", '"1"'], ["2"]),
        ({"oneOf": [{"enum": [1, 2]}, {"enum": [3]}], "title": "x", "x-order": 3}, ["3"], ["4"]),
        ({"propertyNames": {"pattern": "^[a-c]$"}, "type": "object", "additionalProperties": {"type": "integer"}},
         ['{"a":1,"c":2}', "{}"], ['{"d":1}', '{"a":"x"}']),
        ({"propertyNames": {"format": "date"}, "type": "object", "additionalProperties": {"const": 1}},
         ['{"2024-02-29":1}'], ['{"2023-02-29":1}', '{"x":1}', '{"2024-02-29":2}']),
        ({"propertyNames": {"type": "string"}, "type": "object"}, ['{"x":1}'], []),
        ({"type": "object", "minProperties": 1}, ['{"x":1}'], ["{}"]),
    ],
    ids=lambda case: json.dumps(case)[:40],
)  # fmt: skip
def test_what_is_enforced(schema: Any, good: list[str], bad: list[str]) -> None:
    made = matcher(schema)
    assert [text for text in good if not accepts(made, text)] == []
    assert [text for text in bad if accepts(made, text)] == []
    json_text = matcher(json.dumps(schema))
    assert [text for text in good if not accepts(json_text, text)] == []


SAFE, HUGE = 10**15 - 1, 10**20


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"type": "integer"}, [SAFE, -SAFE, 0], [SAFE + 1, -SAFE - 1, HUGE]),
        ({"type": ["integer", "null"]}, [SAFE, None], [HUGE]),
        ({"type": ["integer", "number"]}, [HUGE, 0.5], []),
        ({"type": "integer", "minimum": 0}, [0, SAFE], [-1, HUGE]),
        ({"type": "integer", "exclusiveMaximum": 9}, [8, -SAFE], [9, -HUGE]),
        ({"type": "integer", "minimum": 0, "maximum": 2**60}, [2**60], [-1, HUGE]),
        ({"type": "integer", "minimum": 2**54}, [2**54, HUGE], [3]),
        ({"type": "integer", "multipleOf": 7}, [7, -14], [HUGE * 7, 8]),
        ({"type": "integer", "enum": [1, 10**17]}, [1, 10**17], [2]),
        ({"allOf": [{"type": "integer"}, {"minimum": 2**54}]}, [2**54, HUGE], [3]),
        ({"allOf": [{"type": "integer"}, {"minimum": 2}]}, [2, SAFE], [1, HUGE]),
        ({"$ref": "#/$defs/n", "$defs": {"n": {"type": "integer"}}}, [SAFE], [HUGE]),
        ({"type": "number"}, [HUGE, 1e300], []),
    ],
    ids=lambda case: json.dumps(case)[:40],
)
def test_integers_end(schema: dict[str, Any], good: list[Any], bad: list[Any]) -> None:
    """Without a bound of its own an integer has 15 digits."""
    made = matcher(schema)
    assert [value for value in good if not accepts(made, json.dumps(value))] == []
    assert [value for value in bad if accepts(made, json.dumps(value))] == []


def test_alternatives_that_a_property_tells_apart() -> None:
    """As pydantic writes a tagged union."""
    tagged = [
        {"type": "object", "properties": {"kind": {"const": kind}, "n": {"type": "integer"}}, "required": ["kind"]}
        for kind in ("cat", "dog")
    ]
    schema = {
        "oneOf": [{"$ref": "#/$defs/cat"}, {"$ref": "#/$defs/dog"}],
        "discriminator": {"propertyName": "kind", "mapping": {}},
        "$defs": dict(zip(("cat", "dog"), tagged, strict=True)),
    }
    made = matcher(schema)
    assert accepts(made, '{"kind":"dog","n":3}')
    assert not accepts(made, '{"kind":"cow"}')


def tagged_object(**constants: Any) -> dict[str, Any]:
    properties = {name: {"const": value} for name, value in constants.items()}
    return {"type": "object", "properties": properties, "required": list(properties)}


@pytest.mark.parametrize("other", [{}, {"version": 1}], ids=["tag", "tag and constant"])
def test_many_alternatives_that_a_property_tells_apart_are_checked_at_once(other: dict[str, Any]) -> None:
    schema = {"oneOf": [tagged_object(**other, kind=f"kind {i}") for i in range(3000)]}
    begin = time.process_time()
    assert len(checked_schema(schema)["anyOf"]) == 3000
    schema["oneOf"].append(tagged_object(**other, kind="kind 7"))
    with pytest.raises(GrammarError, match="may share a value"):
        checked_schema(schema)
    assert time.process_time() - begin < 10, "pairs take minutes"


def test_many_alternatives_that_nothing_tells_apart_are_refused_at_once() -> None:
    """Each pair of properties refers to the alternatives again."""
    names = [f"p{i}" for i in range(40)]
    loop = {"type": "object", "properties": {key: {"$ref": "#/$defs/a"} for key in names}, "required": names}
    begin = time.process_time()
    with pytest.raises(GrammarError, match="may share a value"):
        checked_schema({"oneOf": [{"$ref": "#/$defs/a"}] * 2, "$defs": {"a": loop}})
    with pytest.raises(GrammarError, match="may share a value"):
        checked_schema({"oneOf": [{"type": "object", "title": str(i)} for i in range(2000)]})
    assert time.process_time() - begin < 10, "each property in each other one takes minutes"


@pytest.mark.parametrize(
    ("alternatives", "apart"),
    [
        ([{"type": "integer"}, {"type": "string"}, {"enum": [True, None]}], True),
        ([{"enum": [1, "a"]}, {"type": "boolean"}, {"enum": [2]}], True),
        ([{"enum": [1, "a"]}, {"type": "boolean"}, {"enum": [1.0]}], False),
        ([tagged_object(a=1), tagged_object(a=2), tagged_object(a=1)], False),
        ([tagged_object(a=1, b=1), tagged_object(a=1, b=2), tagged_object(a=2, b=2)], True),
        ([tagged_object(a=1), tagged_object(a=2), {"type": "string"}], True),
        ([tagged_object(a=1), tagged_object(a=2), {"const": {"a": 1}}], False),
    ],
    ids=lambda case: json.dumps(case)[:60],
)
def test_which_alternatives_are_told_apart(alternatives: list[Any], apart: bool) -> None:
    assert Comparison(lambda schema: schema).are_disjoint(alternatives) is apart


@pytest.mark.parametrize("wrong", [{"type": 3}, {"type": [{}]}, {"type": "object", "required": 3}, {"required": [[]]}])
def test_alternatives_that_are_no_schemas(wrong: dict[str, Any]) -> None:
    for alternatives in ([wrong, wrong], [wrong, {"type": "string"}], [{"type": "object", "required": ["a"]}, wrong]):
        with pytest.raises(GrammarError):
            matcher({"oneOf": alternatives})


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("date", ["2024-02-29", "2000-02-29", "1999-12-31", "0001-01-01"],
         ["2023-02-29", "1900-02-29", "2024-02-30", "2024-13-01", "0000-01-01", "24-01-01", "2024-04-31"]),
        ("time", ["23:59:59Z", "00:00:00.123+05:30"], ["24:00:00Z", "23:59:60Z", "12:00:00", "12:60:00Z"]),
        ("date-time", ["2024-02-29T23:59:59-08:00"], ["2023-02-29T23:59:59Z", "2024-02-29 23:59:59Z"]),
    ],
)  # fmt: skip
def test_dates_know_leap_years(name: str, good: list[str], bad: list[str]) -> None:
    made = matcher({"type": "string", "format": name})
    assert [text for text in good if not accepts(made, f'"{text}"')] == []
    assert [text for text in bad if accepts(made, f'"{text}"')] == []


@pytest.mark.parametrize(("schema", "good", "bad"), [
    ({"type": "integer", "format": "int32"}, ["-2147483648", "2147483647"], ["-2147483649", "2147483648"]),
    ({"type": "integer", "format": "int32", "minimum": 5, "maximum": 2**40}, ["5", "2147483647"], ["4", "2147483648"]),
    ({"type": "integer", "format": "int64"}, ["999999999999999"], ["1.5"]),
    ({"type": "number", "format": "double"}, ["1.5", "-3"], ['"x"']),
    ({"type": "number", "format": "float"}, ["1.5"], ['"x"']),
    ({"type": "string", "format": "password"}, ['"x"'], ["1"]),
], ids=str)  # fmt: skip
def test_formats_of_openapi(schema: dict[str, Any], good: list[str], bad: list[str]) -> None:
    made = matcher(schema)
    assert [text for text in good if not accepts(made, text)] == []
    assert [text for text in bad if accepts(made, text)] == []


@pytest.mark.parametrize("wrong", ["a", None, True, [1]], ids=str)
def test_bounds_beside_a_format_of_numbers_are_checked(wrong: object) -> None:
    with pytest.raises(GrammarError, match="keyword 'minimum' Expected f64"):
        matcher({"type": "integer", "format": "int32", "minimum": wrong})


def test_white_space_comes_to_an_end() -> None:
    made = matcher(OBJECT)
    assert accepts(made, '{\n\t"a" : 1 ,\n  "b/c":"x" }')
    for text in ('{  "a":1}', '{\n\n"a":1}', ' {"a":1}', '{"a":1} ', '{"a":1}\n'):
        assert not accepts(made, text)


def test_a_name_has_one_spelling() -> None:
    """Or a property that must be a number could come as a text, under a name with an escape."""
    made = matcher({**OBJECT, "additionalProperties": True})
    assert not accepts(made, r'{"a":1,"b\u002fc":2}')
    assert not accepts(made, r'{"\u0061":"x","a":1}')


def counted(schema: Any, monkeypatch: pytest.MonkeyPatch) -> int:
    """Schemas that are visited to check this one."""
    visited = [0]
    visit = schema_module._Check._visit

    def counting(*args: Any, **kwargs: Any) -> None:
        visited[0] += 1
        visit(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(schema_module._Check, "_visit", counting)
        checked_schema(schema)
    return visited[0]


def test_references_by_a_name_cost_no_more_than_there_are_schemas(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them may be any definition; all are visited once, and not once for each reference."""
    n = 200
    schema = {"$defs": {f"d{i}": {"$id": f"x{i}"} for i in range(n)}, "anyOf": [{"$ref": f"x{i}"} for i in range(n)]}
    assert counted(schema, monkeypatch) == 1 + 2 * n


def test_a_schema_with_too_many_parts_is_refused_before_it_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    many = {"anyOf": [{"title": str(i)} for i in range(MOST_SCHEMAS - 1)]}
    assert counted(many, monkeypatch) == MOST_SCHEMAS
    larger = {"anyOf": [True], "items": many}
    monkeypatch.setattr(schema_module, "_Check", None)
    for schema in (larger, {"$defs": {"a": larger}}, {"allOf": [False] * (MOST_SCHEMAS + 1)}):
        with pytest.raises(GrammarError, match="more than 10000 schemas, properties included"):
            checked_schema(schema)


def patterns(begin: str, n: int) -> dict[str, Any]:
    return {"patternProperties": {f"^{begin}{i}": {} for i in range(n)}}


HALF = MOST_PATTERNS // 2 + 1


@pytest.mark.parametrize(("schema", "told"), [
    (patterns("a", MOST_PATTERNS + 1), "more than 100 for one object"),
    ({"items": {"allOf": [patterns("a", HALF), patterns("b", HALF)]}}, "more than 100 for one object"),
    (patterns("a", HALF) | {"$ref": "#/$defs/d", "$defs": {"d": patterns("b", HALF)}}, "more than 100 for one object"),
    ({"anyOf": [patterns(f"{i}a", MOST_PATTERNS) for i in range(11)]}, "more than 1000, here and below"),
], ids=["object", "allOf", "reference", "in all"])  # fmt: skip
def test_too_many_patterns_for_names(schema: dict[str, Any], told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema_module, "_Check", None)
    with pytest.raises(GrammarError, match=told):
        checked_schema(schema)


def test_many_objects_may_have_patterns_for_names() -> None:
    """Extensions are described so, in each object: the compiler takes 10 ms for 200."""
    objects = {f"p{i}": {"type": "object", **patterns("x-", 1)} for i in range(2 * MOST_PATTERNS)}
    checked_schema({"type": "object", "properties": objects})


def test_an_object_with_too_many_properties() -> None:
    """The compiler compares each with each."""
    many: dict[str, Any] = {"type": "object", "properties": {f"p{i}": {} for i in range(MOST_PROPERTIES)}}
    assert len(checked_schema({"items": many})["items"]["properties"]) == MOST_PROPERTIES
    many["properties"]["more"] = {}
    with pytest.raises(GrammarError, match="/items, keyword 'properties' has more than 4000, got 4001"):
        checked_schema({"items": many})


def test_a_long_name_is_not_repeated_for_each_schema_below_it() -> None:
    """A place was a JSON pointer once: a body of 10 MB took 100 GB."""
    inner = {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(1000)}}
    schema = {"type": "object", "properties": {"n" * 1_000_000: inner}}
    tracemalloc.start()
    try:
        checked_schema(schema)
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
    finally:
        tracemalloc.stop()


def test_values_that_are_nested_too_deeply() -> None:
    deep: Any = []
    for _ in range(100_000):  # Python 3.13 takes 900
        deep = [deep]
    for schema in ({"enum": [deep]}, {"$defs": {"a": {"const": deep}}}):
        with pytest.raises((GrammarError, ConfigError), match="nested too deeply"):
            checked_schema(schema)


TWELVE = [{"type": "string", "pattern": f".*a{{{i}}}b"} for i in range(1, MOST_TOGETHER + 3)]
DEFINED = {f"d{i}": pattern | {"$id": f"x{i}"} for i, pattern in enumerate(TWELVE)}


@pytest.mark.parametrize("schema", [
    {"allOf": TWELVE},
    {"allOf": [{"allOf": TWELVE[:6]}, {"anyOf": [{}, {"allOf": TWELVE[6:]}]}]},
    {"properties": {"a": {"allOf": [{"$ref": f"#/$defs/{name}"} for name in DEFINED]}}, "$defs": DEFINED},
    {"allOf": [{"$ref": f"x{i}"} for i in range(12)], "$defs": DEFINED},
    {"$ref": "#/$defs/d0", "$defs": {
        f"d{i}": pattern | {"allOf": [{"$ref": f"#/$defs/d{i + 1}"}]} for i, pattern in enumerate(TWELVE)
    } | {"d12": {}}},
], ids=["list", "nested", "references", "URIs", "chain"])  # fmt: skip
def test_many_patterns_for_one_text_are_refused(schema: dict[str, Any]) -> None:
    """The compiler's time and memory double with each: 60 of them took gigabytes."""
    with pytest.raises(GrammarError, match="more than 10 patterns and formats hold for one text"):
        checked_schema(schema)


def test_an_anchor_counts_for_what_it_names_alone() -> None:
    """It counted for all patterns of the schema once."""
    dates = {f"d{i}": {"type": "string", "format": "date"} for i in range(MOST_TOGETHER + 1)}
    schema = {"type": "object", "properties": {**dates, "x": {"$ref": "#code"}}, "$defs": {
        "code": {"$anchor": "code", "type": "string", "pattern": "^[A-Z]{3}$"},
    }}  # fmt: skip
    checked_schema(schema)
    anchored = {f"d{i}": pattern | {"$anchor": f"x{i}"} for i, pattern in enumerate(TWELVE)}
    with pytest.raises(GrammarError, match="hold for one text"):
        checked_schema({"allOf": [{"$ref": f"#x{i}"} for i in range(12)], "$defs": anchored})


def test_a_reference_to_a_number_of_thousands_of_digits() -> None:
    with pytest.raises(GrammarError, match="which is not there"):
        checked_schema({"anyOf": [{"type": "string"}], "items": {"$ref": "#/anyOf/" + "9" * 5000}})


def test_as_many_patterns_as_one_likes_for_several_texts() -> None:
    schema = {"type": "object", "properties": {f"p{i}": pattern for i, pattern in enumerate(TWELVE)}}
    assert checked_schema(schema | {"anyOf": [{"items": {"anyOf": TWELVE}}]})
