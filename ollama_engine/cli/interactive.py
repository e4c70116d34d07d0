"""The prompt loop of `ollama-engine run`: reads a line, prints the answer; a line with a slash is a command."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import replace
from typing import Any

from ollama_engine.cli.answer import Answerer
from ollama_engine.cli.errors import Flags, UsageError, describe
from ollama_engine.cli.options import Option, options_of
from ollama_engine.cli.texts import argument
from ollama_engine.errors import EngineError
from ollama_engine.errors import Option as Named
from ollama_engine.runner.request.options import RequestOptions
from ollama_engine.sample import SamplingParams

__all__ = ["Conversation", "Write", "set_here"]

Write = Callable[[Named], str | None]
"""Spells an option as the user types it; None where it cannot be set."""

PROMPT = ">>> "
HINT = "Every line is a prompt of its own. /help lists the commands; /bye or Ctrl-D leaves."
HELP = """\
  /set               show the options
  /set NAME VALUE    change one: /set temperature 0.5, /set stop THE END, /set logit_bias 12=-inf 13=2
  /set NAME          its default again
  /help, /?          this text
  /bye, Ctrl-D       leave
  Ctrl-C             stop the answer; leave at the prompt"""


def set_here(flags: Flags, skip: Collection[str] = ()) -> Write:
    """Spells options for the prompt loop: `/set NAME` for those it can change, not for `skip` and the engine's."""
    names = {option.name for cls in (SamplingParams, RequestOptions) for option in options_of(cls, skip)}

    def write(option: Named) -> str | None:
        if option.name not in names:
            return flags(option)
        return option.name if option.value is None else f"/set {option.name} {option.value}"

    return write


class Conversation:
    """Reads prompts until the user leaves. `skip` names options that cannot be set here; `write` is from `set_here`."""

    def __init__(
        self,
        answerer: Answerer,
        params: SamplingParams,
        request_options: RequestOptions,
        write: Write,
        skip: Collection[str] = (),
    ) -> None:
        self._answerer = answerer
        self._params = params
        self._request_options = request_options
        self._write = write
        self._sampling = {option.name: option for option in options_of(SamplingParams, skip)}
        self._options = {**self._sampling, **{option.name: option for option in options_of(RequestOptions, skip)}}

    def run(self) -> None:
        """Serve until /bye or the end of input. KeyboardInterrupt at the prompt propagates."""
        with suppress(ImportError):  # line editing and history, where Python was built with them
            import readline  # noqa: F401, PLC0415
        print(HINT, file=sys.stderr)
        while True:
            try:
                line = argument(_read_line(), "the line").strip()  # a terminal may send invalid UTF-8
            except EOFError:
                print(file=sys.stderr)
                return
            except UnicodeDecodeError as error:
                _say(f"error: byte {error.start + 1} of the line is not {error.encoding.upper()}")
                continue
            except UsageError as error:
                _say(f"error: {error}")
                continue
            if line == "/bye":
                return
            if line.startswith("/"):
                self._command(line)
            elif line:
                self._answer(line)

    def _answer(self, line: str) -> None:
        try:
            self._answerer.answer(line, self._params, self._request_options)
        except KeyboardInterrupt:
            return
        except EngineError as error:
            _say(f"error: {describe(error, self._write)}")

    def _command(self, line: str) -> None:
        command, _, rest = line.partition(" ")
        if command in ("/help", "/?"):
            _say(HELP)
        elif command == "/set":
            self._set(rest.strip())
        else:
            _say(f"error: there is no command {command}; /help lists them")

    def _set(self, rest: str) -> None:
        name, _, text = rest.partition(" ")
        if not name:
            _say("\n".join(f"  {name:18} {getattr(self._holder(name), name)!r}" for name in self._options))
            return
        option = self._options.get(name.replace("-", "_"))
        if option is None:
            _say(f"error: there is no option {name}; there are {', '.join(self._options)}")
            return
        try:
            value = _value(option, text.strip()) if text.strip() else option.default
            self._change(option.name, value)
        except EngineError as error:
            _say(f"error: {describe(error, self._write)}")
        except ValueError:
            _say(f"error: {option.name} takes {option.metavar}, got {text.strip()!r}")

    def _holder(self, name: str) -> SamplingParams | RequestOptions:
        return self._params if name in self._sampling else self._request_options

    def _change(self, name: str, value: Any) -> None:
        if name in self._sampling:
            self._params = replace(self._params, **{name: value})
        else:
            self._request_options = replace(self._request_options, **{name: value})


def _value(option: Option, text: str) -> Any:
    """The value of an option from text. Pairs of a mapping are separated by spaces. Raises ValueError."""
    if option.mapping:
        return dict(map(option.parse, text.split()))
    return option.parse(text)


def _read_line() -> str:
    if sys.stdout.isatty():
        return input(PROMPT)
    # Not input(prompt): it writes the prompt to standard output, among the answers.
    print(PROMPT, end="", file=sys.stderr, flush=True)
    return input()


def _say(text: str) -> None:
    print(text, file=sys.stderr)
