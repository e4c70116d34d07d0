"""Modelfile: how a model is made, in Ollama's form: `FROM llama3.2`, `PARAMETER stop "###"`, `SYSTEM Be brief.`"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from ollama_engine.errors import ConfigError

__all__ = ["COMMANDS", "ROLES", "Command", "Modelfile", "parse_modelfile", "print_modelfile"]

COMMANDS: Final = (
    "FROM", "PARAMETER", "TEMPLATE", "SYSTEM", "ADAPTER", "LICENSE", "MESSAGE", "REQUIRES", "RENDERER", "PARSER",
)  # fmt: skip
ROLES: Final = ("system", "user", "assistant")
NAMED: Final = ("PARAMETER", "MESSAGE")
"""Commands with a name before their value."""

_COMMENT: Final = re.compile(r"\s+|#[^\r\n]*")
_WORD: Final = re.compile(r"[^\S\r\n]*(\S*)[^\S\r\n]*")
_LINE: Final = re.compile(r"[^\r\n]*")
# A quoted value ends with quotes at the end of a line: those inside of a line are part of it.
_END: Final = {quotes: re.compile(rf"{quotes}[^\S\r\n]*(?=[\r\n]|\Z)") for quotes in ('"""', '"')}


@dataclass(frozen=True, slots=True)
class Command:
    """One command.

    Attributes:
        kind: "FROM" ... in capitals.
        value: the text, without quotes.
        name: a PARAMETER's name or a MESSAGE's role, in small letters; "" for others.
    """

    kind: str
    value: str
    name: str = ""


@dataclass(frozen=True)
class Modelfile:
    """Commands in their order."""

    commands: tuple[Command, ...]

    def values(self, kind: str) -> list[str]:
        """Values of all commands of a kind, in order."""
        return [command.value for command in self.commands if command.kind == kind]

    def last(self, kind: str) -> str | None:
        """Value of the last command of a kind; None where there is none."""
        return next(iter(reversed(self.values(kind))), None)


def parse_modelfile(text: str) -> Modelfile:
    """Read a Modelfile. Raises ConfigError, which names the line, for what is none."""
    commands = tuple(_commands(text.removeprefix("\ufeff")))
    if not any(command.kind == "FROM" for command in commands):
        raise ConfigError("a Modelfile says FROM which model or file it is made; this one has no such line")
    return Modelfile(commands)


def _commands(text: str) -> Iterator[Command]:
    at = 0
    while True:
        while (skipped := _COMMENT.match(text, at)) is not None:
            at = skipped.end()
        if at == len(text):
            return
        start = at
        kind, at = _word(text, at)
        if kind.upper() not in COMMANDS:
            raise _error(text, start, f"a command is one of {', '.join(COMMANDS)}, got {kind!r:.40}")
        kind, name = kind.upper(), ""
        if kind in NAMED:
            name, at = _word(text, at)
            name = name.lower()
        if kind == "MESSAGE" and name not in ROLES:
            raise _error(text, start, f"MESSAGE has a role, {', '.join(ROLES)}, and a text; got the role {name!r:.40}")
        value, at = _value(text, at)
        if value is None:
            raise _error(text, start, f"{kind} {name}".strip() + " has no value")
        yield Command(kind, value, name)


def _word(text: str, at: int) -> tuple[str, int]:
    found = _WORD.match(text, at)
    assert found is not None, "matches the empty text"
    return found[1], found.end()


def _value(text: str, at: int) -> tuple[str | None, int]:
    """The value that begins here, None for none, and where it ends."""
    for quotes, ending in _END.items():
        if text.startswith(quotes, at):
            end = ending.search(text, at + len(quotes))
            if end is None:
                raise _error(text, at, f"a text that begins with {quotes} ends with {quotes} at the end of a line")
            return text[at + len(quotes) : end.start()], end.end()
    line = _LINE.match(text, at)
    assert line is not None, "matches the empty text"
    return line[0].strip() or None, line.end()


def _error(text: str, at: int, what: str) -> ConfigError:
    number = len(f"{text[:at]}x".splitlines())
    return ConfigError(f"Modelfile, line {number}: {what}")


def print_modelfile(modelfile: Modelfile) -> str:
    """A text that `parse_modelfile` reads as the same commands.

    Raises ConfigError for a text that has lines which end with quotes of both kinds: there is no way to write it.
    """
    lines = (" ".join(filter(None, (command.kind, command.name, _quoted(command)))) for command in modelfile.commands)
    return "\n".join(lines) + "\n"


def _quoted(command: Command) -> str:
    text = command.value
    plain = text and text == text.strip() and not re.search(r'[\r\n]|\A"', text)
    if plain and command.kind not in ("TEMPLATE", "SYSTEM", "LICENSE"):
        return text
    for quotes, ending in _END.items():
        found = ending.search(f"{text}{quotes}")
        if found is not None and found.start() == len(text) and _begins(text, quotes):
            return f"{quotes}{text}{quotes}"
    raise ConfigError(f'a Modelfile has no way to write a text with lines that end with """: {text!r:.80}')


def _begins(text: str, quotes: str) -> bool:
    """Whether quotes before the text are read as these, and not as three."""
    return quotes == '"""' or not f"{text}{quotes}".startswith('""')
