"""PromptLoop: reads what a user types at a terminal, prompts and commands that begin with a slash."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import NamedTuple

from ollama_engine.cli.chat.settings import Settings
from ollama_engine.cli.errors import UsageError, describe
from ollama_engine.cli.texts import argument
from ollama_engine.errors import EngineError

__all__ = ["PromptLoop", "SlashCommand", "set_command"]

PROMPT, MORE = ">>> ", "... "
QUOTES = '"""'
LEAVE = ("/bye", "/exit", "/quit")
KEYS = (
    (f"{QUOTES} ... {QUOTES}", "a prompt of several lines"),
    ("/bye, Ctrl-D", "leave"),
    ("Ctrl-C", "stop the answer; at the prompt, twice to leave"),
)
NO_COMMAND = "there is no command {}; /help lists them. A prompt that begins with a slash goes between " + QUOTES


class SlashCommand(NamedTuple):
    """A command of the loop."""

    usage: str
    """Such as "/set NAME VALUE"."""
    help: str
    run: Callable[[str], str | None]
    """Called with what follows the name; returns what to tell the user, if anything. EngineError is told too."""


class PromptLoop:
    """Serves until /bye or the end of input.

    Args:
        hint: told at the beginning.
        answer: called with each prompt. EngineError is told, and KeyboardInterrupt ends the answer only.
        commands: by name, such as "/set".
        settings: they say how options in messages are typed.
        take: called with each line that is neither quoted nor a command; returns the text that is left to answer.
    """

    def __init__(
        self, hint: str, answer: Callable[[str], None], commands: Mapping[str, SlashCommand], settings: Settings,
        take: Callable[[str], str] = str,
    ) -> None:  # fmt: skip
        self._hint = hint
        self._answer = answer
        self._commands = commands
        self._settings = settings
        self._take = take

    def run(self) -> None:
        """Serve. KeyboardInterrupt, where the user presses Ctrl-C twice at the prompt, goes on to the caller."""
        _say(self._hint)
        interrupted = False
        while True:
            try:
                text = _read()
            except EOFError:
                print(file=sys.stderr)
                return
            except KeyboardInterrupt:
                if interrupted:
                    raise
                _say("\n(Ctrl-C again, Ctrl-D or /bye leaves)")
                interrupted = True
                continue
            except UnicodeDecodeError as error:
                _say(f"error: byte {error.start + 1} of the line is not {error.encoding.upper()}")
                continue
            except UsageError as error:
                _say(f"error: {error}")
                continue
            interrupted = False
            if text.command in LEAVE:
                return
            self._serve(text)

    def _serve(self, typed: _Typed) -> None:
        try:
            if typed.command:
                self._command(typed)
            else:
                self._prompt(typed.text if typed.quoted else self._take(typed.text))
        except KeyboardInterrupt:
            return
        except EngineError as error:
            _say(f"error: {describe(error, self._settings.write)}")

    def _prompt(self, text: str) -> None:
        if text:
            self._answer(text)

    def _command(self, typed: _Typed) -> None:
        name = typed.command
        if name in ("/help", "/?"):
            _say(self.help())
        elif name in self._commands:
            said = self._commands[name].run(typed.text)
            if said is not None:
                _say(said)
        elif (left := self._take(typed.line)) != typed.line:  # the path of a file begins with a slash, too
            self._prompt(left)
        else:
            _say(f"error: {NO_COMMAND.format(name)}")

    def help(self) -> str:
        """A line for each command and key."""
        commands = [(command.usage, command.help) for command in self._commands.values()]
        return "\n".join(f"  {usage:18} {text}" for usage, text in [*commands, ("/help, /?", "this text"), *KEYS])


def set_command(settings: Settings) -> SlashCommand:
    """/set: show the options, or change one."""
    return SlashCommand(
        "/set NAME VALUE",
        "change an option: /set temperature 0.5, /set stop THE END, /set format json;\n"
        f"{'':21}without VALUE to the program's default, without NAME show all",
        lambda rest: settings.set(rest) if rest else str(settings),
    )


class _Typed(NamedTuple):
    text: str
    command: str = ""
    line: str = ""
    """All that was typed, where it begins with a slash."""
    quoted: bool = False


def _read() -> _Typed:
    """A prompt or a command. Raises EOFError, KeyboardInterrupt, UnicodeDecodeError and UsageError."""
    line = argument(_read_line(PROMPT), "the line").strip()  # terminals hand over what is not UTF-8
    if line.startswith(QUOTES):
        return _Typed(_read_quoted(line[len(QUOTES) :]), quoted=True)
    if line.startswith("/"):
        name, _, rest = line.partition(" ")
        return _Typed(rest.strip(), name, line)
    return _Typed(line)


def _read_quoted(line: str) -> str:
    lines = []
    while not line.rstrip().endswith(QUOTES):
        lines.append(line)
        line = argument(_read_line(MORE), "the line")
    lines.append(line.rstrip()[: -len(QUOTES)])
    return "\n".join(lines).strip("\n")


def _read_line(prompt: str) -> str:
    if sys.stdout.isatty():
        return input(prompt)
    # input() would put its prompt among the answers.
    print(prompt, end="", file=sys.stderr, flush=True)
    return input()


def _say(text: str) -> None:
    print(text, file=sys.stderr)
