"""RequestOptions: what a caller may ask of a request, checked once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ollama_engine.errors import ConfigError
from ollama_engine.runner.request.options import RequestOptions

BAD: list[tuple[dict[str, Any], str]] = [
    ({"on_overflow": "grow"}, "error, truncate, shift, got 'grow'"),
    ({"on_overflow": None}, "got None"),
    ({"num_keep": -1}, "num_keep is a whole number from 0"),
    ({"num_keep": 1.0}, r"got 1\.0"),
    ({"num_keep": True}, "got True"),
    ({"num_keep": "4"}, "got '4'"),
    ({"num_keep": 1 << 30}, "num_keep"),
    ({"priority": 0.5}, "priority is a whole number"),
    ({"priority": None}, "priority"),
    ({"priority": 1 << 40}, "priority"),
    ({"timeout": 0}, "seconds above 0"),
    ({"timeout": -1.5}, r"got -1\.5"),
    ({"timeout": float("inf")}, "got inf"),
    ({"timeout": float("nan")}, "got nan"),
    ({"timeout": True}, "got True"),
    ({"timeout": "1"}, "got '1'"),
    ({"cache": 1}, "cache is True or False, got 1"),
    ({"cache": None}, "cache"),
]


@pytest.mark.parametrize(("options", "told"), BAD, ids=str)
def test_values_out_of_range(options: Any, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        RequestOptions.of(options)


def test_defaults_are_those_of_no_options() -> None:
    assert RequestOptions.of({}) == RequestOptions("error", 0, 0, None, True)


def test_any_whole_number_will_do() -> None:
    made = RequestOptions.of({"num_keep": np.int64(4), "priority": np.int8(-3), "timeout": np.float32(2)})  # type: ignore[typeddict-item]
    assert (made.num_keep, made.priority, made.timeout) == (4, -3, 2.0)
    assert (type(made.num_keep), type(made.priority)) == (int, int)


def test_unknown_options_are_refused_as_by_any_function() -> None:
    with pytest.raises(TypeError, match="a request takes no 'priorty'; did you mean priority"):
        RequestOptions.of({"priorty": 1})  # type: ignore[typeddict-unknown-key]
