"""Errors: what they say, of which options, and that they survive being copied, pickled and numbered."""

from __future__ import annotations

import copy
import pickle

import pytest

from ollama_engine import errors
from ollama_engine.errors import (
    ConfigError,
    ContextOverflowError,
    DeviceError,
    EngineError,
    NoMemoryError,
    Option,
    UnknownOptionError,
)

CLASSES = [found for name in errors.__all__ if isinstance(found := getattr(errors, name), type) and name != "Option"]


def overflow() -> ContextOverflowError:
    cut = ("cut it with ", Option("on_overflow", "truncate"), " or ", Option("on_overflow", "shift"))
    return ContextOverflowError(
        "more than ", Option("num_ctx"), " 8", advice=["shorten it", cut, ("raise ", Option("n"))]
    )


def test_options_are_named_as_in_python() -> None:
    told = 'more than num_ctx 8; shorten it, cut it with on_overflow="truncate" or on_overflow="shift", or raise n'
    assert str(overflow()) == told
    assert str(ContextOverflowError("full", advice=["wait", "go"])) == "full; wait or go"
    assert str(ContextOverflowError("full", advice=["wait"])) == "full; wait"


def test_values_are_written_as_python_takes_them() -> None:
    ways = [("choose ", Option("gpu_layers", 0)), ("leave ", Option("think", False)), ("pass ", Option("n", 0.5))]
    assert str(ConfigError("no", advice=ways)) == "no; choose gpu_layers=0, leave think=False, or pass n=0.5"


def test_others_name_them_their_way_and_leave_out_what_they_cannot_do() -> None:
    flags = {"on_overflow": "--cut"}
    told = overflow().message(lambda option: flags.get(option.name))
    assert told == "more than num_ctx 8; shorten it or cut it with --cut or --cut"
    assert overflow().message(lambda option: None) == "more than num_ctx 8; shorten it"


def test_what_an_error_is_about() -> None:
    assert ConfigError(Option("seed"), " is odd").option == "seed"
    assert (overflow().option, EngineError().option, ConfigError("odd").option) == (None, None, None)


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_each_is_an_engine_error_and_a_builtin(cls: type[EngineError]) -> None:
    assert issubclass(cls, EngineError)
    if cls is not EngineError:
        beside = [base for base in cls.__mro__ if base.__module__ == "builtins"]
        assert set(beside) - {Exception, BaseException, object}, "no builtin that callers may catch"


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
@pytest.mark.parametrize("again", [copy.copy, lambda error: pickle.loads(pickle.dumps(error))], ids=["copy", "pickle"])
def test_an_error_is_the_same_elsewhere(cls: type[EngineError], again) -> None:
    error = cls(Option("seed"), " is odd", advice=["change ", ("leave ", Option("seed"))])
    error.text_number = 3
    other = again(error)
    assert type(other) is cls
    assert (str(other), other.parts, other.advice) == (str(error), error.parts, error.advice)
    assert (other.text_number, other.http_status) == (3, error.http_status)


def test_where_it_happened_comes_first() -> None:
    error = overflow().behind("texts[3]: ")
    assert str(error).startswith("texts[3]: more than num_ctx 8; shorten it")
    assert error.message(lambda option: None) == "texts[3]: more than num_ctx 8; shorten it"
    full = NoMemoryError("full", advice=["wait"], report="a table")
    assert str(full.behind("m.gguf: ")) == "m.gguf: full; wait\na table"


def test_the_builtins_beside_them_have_their_message() -> None:
    assert str(DeviceError("GPU 3", " is gone")) == "GPU 3 is gone"
    assert isinstance(UnknownOptionError("x"), (TypeError, ValueError))
