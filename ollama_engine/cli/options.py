"""Makes command-line options from the fields of a dataclass, so that names, defaults and help are stated once.

The type of a field decides how its text is parsed: numbers, texts, choices of a Literal, on/off switches,
comma-separated numbers, and repeated options for texts and for mappings (`--logit-bias 123=-inf`). An option that is
not given is absent from the namespace: the dataclass has the defaults, and checks the ranges.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from ollama_engine.cli.numbers import NUMBER, WHOLE_NUMBER
from ollama_engine.cli.paths import existing
from ollama_engine.cli.stored import MayPull, found_or_pulled, stored_names
from ollama_engine.config import PYTHON_ONLY
from ollama_engine.server.sizes import SIZE, bytes_of
from ollama_engine.store.hub_names import is_hub_name
from ollama_engine.store.lookup import DEMO, DEMO_VISION, how_to_get

if TYPE_CHECKING:
    from ollama_engine.store.stored_model import StoredModel

__all__ = ["OptionField", "add_model", "add_options", "build", "find_model", "model_path", "options_of"]

_T = TypeVar("_T")

SHORT = {"threads": "-t", "max_tokens": "-n"}
SINGULAR = {"devices": "--device"}
"""Flags of options that are said once for each of several values."""
EXPECTED = {"N": WHOLE_NUMBER, "X": NUMBER, "X,Y": "numbers such as 3,1", "BYTES": SIZE}
"""What a metavar stands for, where that is not plain."""
NAMED = re.compile(r"(?<![;\w])[a-z]+(?:_[a-z]+)+(?![;\w])")
"""An option that a help text names as Python has it. What semicolons separate are values: names of samplers."""


@dataclass(frozen=True)
class OptionField:
    """One field of a dataclass as an option."""

    name: str
    help: str
    default: Any
    parse: Callable[[str], Any]
    """Parses a text; raises ValueError."""
    metavar: str
    choices: tuple[str, ...] | None = None
    switch: bool = False
    """Whether the option is a pair `--name` and `--no-name` without a value."""
    mapping: bool = False
    """Whether `parse` returns (key, value) pairs, which are collected into a dict."""
    repeated: bool = False

    @property
    def expected(self) -> str:
        """What a value is, for the message about one that `parse` does not take."""
        return EXPECTED.get(self.metavar, self.metavar)

    @property
    def flag(self) -> str:
        """The long form, such as --top-k."""
        return _flag(self.name)


def _flag(name: str) -> str:
    return SINGULAR.get(name, "--" + name.replace("_", "-"))


# -- fields to options -------------------------------------------------------------------------------------------------


def options_of(cls: type, skip: Collection[str] = ()) -> tuple[OptionField, ...]:
    """One Option for each field of a dataclass but those in `skip`, and those that no text can say."""
    hints = get_type_hints(cls)
    options = []
    for spec in fields(cls):
        if spec.name not in skip and PYTHON_ONLY not in spec.metadata:
            assert spec.default is not MISSING, spec.name
            how = _reading(spec.name, hints[spec.name])
            options.append(OptionField(spec.name, spec.metadata["help"], spec.default, **how))
    return tuple(options)


def _reading(name: str, hint: Any) -> dict[str, Any]:
    """Fields of Option for a type. Raises TypeError for a type that has no option."""
    hint = _one_type(hint)
    kind = (get_origin(hint) or hint, *get_args(hint)[-1:])
    if kind[0] is Literal:
        return {"parse": str, "metavar": "", "choices": tuple(str(c) for c in get_args(hint))}
    if kind == (Mapping, float):
        return {"parse": _pair, "metavar": "ID=NUMBER", "mapping": True, "repeated": True}
    if kind in ((Iterable, str), (Sequence, str)):
        return {"parse": str, "metavar": "TEXT", "repeated": True}
    if kind == (Sequence, float):
        return {"parse": _numbers, "metavar": "X,Y"}
    if hint is bool:
        return {"parse": _switch, "metavar": "on|off", "switch": True}
    plain = {int: (int, "N"), float: (float, "X"), str: (str, "TEXT")}
    if hint in plain:
        parse, metavar = (bytes_of, "BYTES") if name.endswith("_bytes") else plain[hint]
        return {"parse": parse, "metavar": metavar}
    raise TypeError(f"no option can be made from {name}: {hint}")


def _one_type(hint: Any) -> Any:
    """The member of a union that an option is parsed as: a Literal if there is one, else the first, never None."""
    if get_origin(hint) not in (Union, UnionType):
        return hint
    members = [m for m in get_args(hint) if m is not NoneType]
    return next((m for m in members if get_origin(m) is Literal), members[0])


def _pair(text: str) -> tuple[int, float]:
    key, equals, value = text.partition("=")
    if not equals:
        raise ValueError(f"expected ID=NUMBER, got {text!r}")
    return int(key), float(value)


def _numbers(text: str) -> tuple[float, ...]:
    return tuple(float(part) for part in text.split(","))


def _switch(text: str) -> bool:
    words = {"on": True, "off": False, "true": True, "false": False, "1": True, "0": False}
    if text.lower() not in words:
        raise ValueError(f"expected on or off, got {text!r}")
    return words[text.lower()]


# -- options and argparse ----------------------------------------------------------------------------------------------


def add_options(
    parser: argparse.ArgumentParser, title: str, cls: type, *, skip: Collection[str] = (),
    defaults: Mapping[str, Any] | None = None,
) -> None:  # fmt: skip
    """Add the fields of a dataclass as a group of options. `defaults`: those of this command, where they differ."""
    group = parser.add_argument_group(title)
    for given in options_of(cls, skip):
        option = replace(given, default=(defaults or {}).get(given.name, given.default))
        names = [option.flag] if option.name not in SHORT else [SHORT[option.name], option.flag]
        settings: dict[str, Any] = {
            "dest": option.name,
            "default": argparse.SUPPRESS,
            "help": (NAMED.sub(lambda name: _flag(name[0]), option.help) + _default_note(option)).replace("%", "%%"),
        }
        if option.switch:
            settings["action"] = argparse.BooleanOptionalAction
        elif option.choices is not None:
            settings["choices"] = option.choices
        else:
            settings |= {"type": _argument(option), "metavar": option.metavar}
            settings["action"] = "append" if option.repeated else "store"
        group.add_argument(*names, **settings)


def _default_note(option: OptionField) -> str:
    if option.switch:
        return f" (default: {'on' if option.default else 'off'})"
    return "" if option.default is None or option.repeated else f" (default: {option.default})"


def _argument(option: OptionField) -> Callable[[str], Any]:
    """`parse` for argparse: raises ArgumentTypeError, whose message argparse shows unchanged."""

    def convert(text: str) -> Any:
        try:
            return option.parse(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"expected {option.expected}, got {text!r}") from None

    return convert


def build(cls: type[_T], args: argparse.Namespace, *, skip: Collection[str] = (), **fixed: Any) -> _T:
    """An instance of the dataclass from the command line; `fixed` holds values for options that were not given.

    Raises ConfigError for a value out of range.
    """
    values = dict(fixed)
    for option in options_of(cls, skip):
        if hasattr(args, option.name):
            value = getattr(args, option.name)
            values[option.name] = dict(value) if option.mapping else value
    return cls(**values)


def add_model(parser: argparse.ArgumentParser, *, optional: bool = False) -> None:
    parser.add_argument("model", metavar="MODEL", nargs="?" if optional else None, help="a GGUF file (any part of a "
                        "split one), a name that ollama-engine list shows, a name of the Hugging Face Hub "
                        f"(hf.co/USER/REPOSITORY), or one of the models inside of this package: {DEMO} tells stories, "
                        f"{DEMO_VISION} sees")  # fmt: skip


def model_path(model: str) -> str:
    """The path for MODEL, as `find_model` finds it, without what the store knows of it."""
    return find_model(model)[0]


def find_model(
    model: str, may_pull: MayPull = is_hub_name, *, insecure: bool = False
) -> tuple[str, StoredModel | None]:
    """The path for MODEL, and what the store knows of it, which is downloaded where `may_pull` says so: see
    `found_or_pulled`.

    `demo` and `demo-vision` are built in; for a file of such a name, type ./demo. Raises FileNotFoundError, which
    suggests similar names, where there is no such file and no such model, and what reading the store raises.
    """
    found = found_or_pulled(model, may_pull, insecure=insecure)
    if found is not None:
        return found
    return existing(model, DEMO, DEMO_VISION, *stored_names(), hint=how_to_get(model)), None
