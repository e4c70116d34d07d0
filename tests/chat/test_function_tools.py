"""Python functions as tools: their schemas say what signature and docstring say, and models call by them."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any, Literal

import jsonschema
import pytest

from ollama_engine import Engine, demo
from ollama_engine.chat.tool_schemas import read_tools
from ollama_engine.errors import ChatError


class Unit(Enum):
    CELSIUS = "C"
    FAHRENHEIT = "F"


@dataclass
class Place:
    name: str
    height: float = 0.0


@dataclass
class Journey:
    begin: Place
    end: Place


def forecast(
    city: str, days: int = 1, *, unit: Unit = Unit.CELSIUS, detail: Literal["short", "long"] | None = None
) -> str:
    """The weather forecast for a city.

    It is updated every hour.

    Args:
        city: its name, such as "Oslo":
            without its country.
        days (int, optional): how many days ahead.

    Returns:
        a text
    """
    return f"{city} {days} {unit} {detail}"


def sphinx(a: Annotated[int, "the first"], b: list[str], c: dict[str, float], d: tuple[int, bool], *rest: int) -> None:
    """Does something.

    :param b: texts
    :param list c: numbers
        by name
    :returns: nothing
    """


def of(function: Any) -> dict[str, Any]:
    (tool,) = read_tools([function]) or [{}]
    assert tool["type"] == "function"
    described: dict[str, Any] = tool["function"]
    jsonschema.Draft202012Validator.check_schema(described["parameters"])
    return described


def test_a_function_is_what_it_says_of_itself() -> None:
    assert of(forecast) == {
        "name": "forecast",
        "description": "The weather forecast for a city.\n\nIt is updated every hour.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": 'its name, such as "Oslo": without its country.'},
                "days": {"type": "integer", "description": "how many days ahead.", "default": 1},
                "unit": {"enum": ["C", "F"]},
                "detail": {"anyOf": [{"enum": ["short", "long"]}, {"type": "null"}], "default": None},
            },
            "required": ["city"],
        },
    }


def test_other_docstrings_and_types() -> None:
    described = of(sphinx)
    assert described["description"] == "Does something."
    properties = described["parameters"]["properties"]
    assert properties["a"] == {"type": "integer", "description": "the first"}
    assert properties["b"] == {"type": "array", "items": {"type": "string"}, "description": "texts"}
    assert properties["c"]["description"] == "numbers by name"
    valid = {"a": 1, "b": ["x"], "c": {"y": 1.5}, "d": [1, True]}
    jsonschema.validate(valid, described["parameters"])
    for name, wrong in (("a", "1"), ("b", [1]), ("c", {"y": "z"}), ("d", [1]), ("d", [1, True, 2])):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({**valid, name: wrong}, described["parameters"])
    assert list(properties) == ["a", "b", "c", "d"], "no name for the rest"


def test_classes_are_shared_definitions() -> None:
    def visit(journey: Journey, stops: Sequence[Place], anything, note: Any = object()) -> None:  # noqa: B008
        pass

    parameters = of(visit)["parameters"]
    assert parameters["required"] == ["journey", "stops", "anything"]
    place = {"name": "Oslo", "height": 3.5}
    jsonschema.validate({"journey": {"begin": place, "end": place}, "stops": [place], "anything": 3}, parameters)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"journey": {"begin": {}, "end": place}, "stops": [], "anything": 3}, parameters)


def by_position(city: str, /) -> None:
    pass


def of_unknown(city: Nowhere) -> None:  # type: ignore[name-defined]  # noqa: F821
    pass


def of_object(city: functools.partial[int]) -> None:
    pass


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda city: city, "a name that the model calls it by, got '<lambda>'"),
        (by_position, r"tools\[0\] \(by_position\): city is taken by position only"),
        (of_unknown, "signature cannot be read: name 'Nowhere'"),
        (of_object, r"\(of_object\): the parameter city: no schema can be made of partial"),
        (Place, "got the class Place; describe a tool by a dict .* or pass a function"),
    ],
)
def test_what_cannot_be_described(function: Any, message: str) -> None:
    with pytest.raises(ChatError, match=message):
        read_tools([function])


def test_methods_are_functions_without_self() -> None:
    class Station:
        def measure(self, depth: float) -> float:
            """Measures."""
            return depth

    described = of(Station().measure)
    assert (described["name"], list(described["parameters"]["properties"])) == ("measure", ["depth"])


def test_a_model_calls_a_function() -> None:
    with Engine(demo.path(), num_ctx=512, parallel=1) as engine:
        message = [{"role": "user", "content": "Will it rain?"}]
        answer = engine.chat(message, tools=[forecast], tool_choice="forecast", max_tokens=200, seed=1, temperature=0.2)
        (call,) = answer.tool_calls
        jsonschema.validate(call.arguments, of(forecast)["parameters"])
