"""`ollama-engine`: the parser, logging, and the only place that turns errors into a message and an exit code."""

from __future__ import annotations

import argparse
import gc
import logging
import os
import re
import shlex
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any, NoReturn

from ollama_engine import __version__
from ollama_engine.cli.errors import (
    EXIT_ERROR,
    EXIT_INTERRUPTED,
    EXIT_OK,
    EXIT_USAGE,
    Flags,
    UsageError,
    describe,
    exit_code,
)
from ollama_engine.cli.logs import FORMAT_VARIABLE, FORMATS, ShortFormatter, log_formatter
from ollama_engine.cli.numbers import read_number, read_whole_number
from ollama_engine.cli.streams import (
    discard_output,
    flush_output,
    open_closed_streams,
    output_is_whole,
    prepare_streams,
)

__all__ = ["EPILOG", "command_parsers", "main", "program"]

COMMANDS = {
    "run": ("chat", "answer a prompt, or one prompt after the other"),
    "serve": ("serving", "answer requests of Ollama's, OpenAI's and Anthropic's clients over HTTP"),
    "embed": ("chat", "turn texts into vectors"),
    "list": ("models", "list the models of the store"),
    "ps": ("serving", "list the models that a running server has loaded"),
    "stop": ("serving", "unload a model of a running server"),
    "pull": ("models", "download a model into the store"),
    "push": ("models", "publish a model of the store in a registry"),
    "create": ("models", "make a model of the store as a Modelfile says"),
    "cp": ("models", "give a model of the store another name"),
    "rm": ("models", "remove models from the store"),
    "cache": ("models", "list, check and remove prefixes that are kept on disk"),
    "show": ("models", "say what is in a model file"),
    "devices": ("measure", "list what this machine can compute on"),
    "doctor": ("measure", "say what this installation can do, and whether the store is sound"),
    "bench": ("measure", "measure tokens per second"),
    "convert": ("models", "turn the folder of a Hugging Face model into a GGUF file"),
    "quantize": ("models", "write a GGUF file again with smaller weights"),
    "perplexity": ("measure", "measure how well a model predicts a text"),
    "worker": ("serving", "let programs on other machines compute with the devices of this one"),
    "runner": ("serving", "serve one model to a server, in a process of its own"),
}
"""Each with the room that has its module, in the order of --help."""

ALIASES = {"list": ["ls"]}
"""Other names of commands, as Ollama's program has them."""

OTHER_NAMES = {
    "run": "chat generate complete ask prompt llama-cli", "serve": "server start api", "embed": "embedding embeddings",
    "list": "models tags", "rm": "delete remove", "cp": "copy", "pull": "download get", "push": "upload publish",
    "show": "info inspect", "ps": "status", "doctor": "check health", "bench": "benchmark llama-bench",
    "convert": "convert-hf-to-gguf", "quantize": "quantise llama-quantize", "perplexity": "ppl llama-perplexity",
    "worker": "rpc-server",
}  # fmt: skip
"""What other programs call such commands: for the hint behind one that is none."""

COLLECT_AFTER = 50_000
"""New objects before Python's garbage collector runs, in a process of `program`."""

LOG_VARIABLE = "OLLAMA_ENGINE_LOG"
TRACE = 5
"""Level of the package's most detailed messages."""
LEVELS = {
    "trace": TRACE,
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}

EPILOG = f"""\
environment:
  {LOG_VARIABLE}  what to log on standard error: {", ".join(LEVELS)} (default: warning)
  {FORMAT_VARIABLE}  {" or ".join(FORMATS)}: one object a line, with fields (default: text)

exit codes:
  {EXIT_OK} done, {EXIT_ERROR} failed, {EXIT_USAGE} wrong options or arguments, {EXIT_INTERRUPTED} interrupted (Ctrl-C)
"""


def program() -> int:
    """`main` in its own process, with settings that a library must not make for its caller's process:

    - Importing and loading make tens of thousands of objects that stay. Python's garbage collector would scan them
      after every 700 new ones, 12 ms of a start, and once more at exit, 20 ms, when the system frees all memory anyway.
    - numpy's BLAS starts a thread for each CPU, which spins while the model loads. Nothing here uses BLAS.
    - A standard stream that is closed (`>&-`) leads nowhere instead.
    """
    open_closed_streams()
    gc.set_threshold(COLLECT_AFTER)
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        return main()
    finally:
        gc.freeze()


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program with these arguments (those of the process if None) and return its exit code.

    Raises SystemExit for --help, --version and for arguments that cannot be parsed.
    """
    prepare_streams()
    debug, flags = False, Flags()
    try:
        args = _parsed(argv)
        debug, flags = args.debug, args.flags
        command: Callable[[argparse.Namespace], None] = args.command
        with _logging():
            command(args)
        flush_output()
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        discard_output()  # the reader closed the pipe, as `head` does
    except Exception as error:
        if debug:
            traceback.print_exc()
        if isinstance(error, OSError) and not output_is_whole() and error.filename is None:
            error.filename = "standard output"
        print(f"error: {describe(error, flags)}", file=sys.stderr)
        return exit_code(error, flags)
    return EXIT_OK


# -- parsing -----------------------------------------------------------------------------------------------------------


def command_parsers() -> dict[str, argparse.ArgumentParser]:
    """The parser of each command with all of its arguments, by the command's name."""
    (choice,) = (action for action in _parser()._actions if isinstance(action, argparse._SubParsersAction))
    parsers: dict[str, argparse.ArgumentParser] = {}
    for name in COMMANDS:
        parser: _LazyParser = choice.choices[name]
        parser.load()
        parsers[name] = parser
    return parsers


class _CommandParser(argparse.ArgumentParser):
    """The program's parser. Of a command that is none it says which one may be meant."""

    def error(self, message: str) -> NoReturn:
        unknown = re.match(r"argument COMMAND: invalid choice: '([^']*)'", message)
        if unknown:
            message = f"there is no command {unknown[1]!r}{_meant_command(unknown[1])}"
        print(f"{self.prog}: error: {message}\n{self.prog} --help lists the commands", file=sys.stderr)
        self.exit(EXIT_USAGE)


def _meant_command(typed: str) -> str:
    from difflib import get_close_matches  # noqa: PLC0415 (after a typing mistake only)

    homes = {other: name for name, others in OTHER_NAMES.items() for other in others.split()}
    homes |= {name: name for name in COMMANDS}
    near = get_close_matches(typed.lower(), homes, 1)
    return f"; did you mean {homes[near[0]]}?" if near else ""


class _LazyParser(argparse.ArgumentParser):
    """A subcommand's parser. Its module is imported, and adds the arguments, when the subcommand is chosen."""

    def __init__(self, *, module: str = "", **settings: Any) -> None:
        super().__init__(allow_abbrev=False, **settings)
        self.register("type", int, read_whole_number)
        self.register("type", float, read_number)
        self._module = module
        self._of_requests: dict[str, str] = {}
        """Options that a command leaves to requests, and their names there."""

    def load(self) -> None:
        """Add the arguments, once."""
        if self._module:
            home = import_module(self._module)
            self._module = ""
            home.add_arguments(self)
            self.set_defaults(command=home.main, flags=Flags(self._actions))
            self._of_requests = getattr(home, "OF_REQUESTS", {})
            _add_debug(self, argparse.SUPPRESS)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        self.load()
        parsed, extras = super().parse_known_args(args, namespace)
        _find_late_prompt(parsed, extras)
        if extras and getattr(parsed, "prompt", None) and not extras[0].startswith("-"):
            words = shlex.quote(" ".join([parsed.prompt, *extras]))
            self.error(f"unrecognized arguments: {' '.join(extras)}; PROMPT is one argument, put it in quotes: {words}")
        if extras and extras[0].startswith("-"):
            self.error(f"unrecognized arguments: {' '.join(extras)}{self._hint(extras[0])}")
        return parsed, extras

    def error(self, message: str) -> NoReturn:
        """Print the message without all options, which would hide it, and exit."""
        glued = re.match(r"argument (-\w)/\S+: .*'([a-z]+)'$", message)
        if glued:  # -ngl 99 is read as -n with the value gl
            message += self._hint(glued[1] + glued[2])
        print(f"{self.prog}: error: {message}\n{self.prog} --help lists the options", file=sys.stderr)
        self.exit(EXIT_USAGE)

    def _hint(self, flag: str) -> str:
        from ollama_engine.option_names import ALIASES, NOT_HERE, meant  # noqa: PLC0415 (after a typing mistake only)

        flags = {flag[2:].replace("-", "_"): flag for action in self._actions for flag in action.option_strings}
        name = flag.lstrip("-").partition("=")[0].replace("-", "_")
        if name in NOT_HERE and name not in flags:
            return f"; {NOT_HERE[name]}"
        meaning = meant(name, list(flags))
        if meaning is None and (requested := self._of_requests.get(ALIASES.get(name, name))):
            return f"; requests have it among their options, and Modelfiles as a PARAMETER: {requested}"
        return "" if meaning is None else f"; did you mean {flags[meaning]}?"


def _find_late_prompt(parsed: argparse.Namespace, extras: list[str]) -> None:
    """Accept a PROMPT or TEXTs behind options: argparse before Python 3.13 rejects them as surplus arguments."""
    marked = extras[:1] == ["--"]
    rest = extras[1:] if marked else extras
    if rest and getattr(parsed, "texts", None) == [] and (marked or not any(word.startswith("-") for word in rest)):
        parsed.texts = list(rest)
        extras[:] = []
    if rest and getattr(parsed, "prompt", "") is None and (marked or not rest[0].startswith("-")):
        parsed.prompt = rest[0]
        extras[:] = rest[1:]


def _parsed(argv: Sequence[str] | None) -> argparse.Namespace:
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] == ["help"]:
        words = [*words[1:], "--help"]
    try:
        return _parser().parse_args(words)
    except SystemExit:  # behind --help
        flush_output()
        raise


def _parser() -> argparse.ArgumentParser:
    parser = _CommandParser(
        prog="ollama-engine",
        description="Run language models in GGUF files.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    _add_debug(parser, False)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True, parser_class=_LazyParser)
    for name, (room, help_text) in COMMANDS.items():
        commands.add_parser(
            name, aliases=ALIASES.get(name, []), module=f"ollama_engine.cli.{room}.{name}", help=help_text,
            description=_sentence(help_text), epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter,
        )  # fmt: skip
    return parser


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def _add_debug(parser: argparse.ArgumentParser, default: Any) -> None:
    parser.add_argument("--debug", action="store_true", default=default, help="show a traceback with errors")


# -- logging -----------------------------------------------------------------------------------------------------------


@contextmanager
def _logging() -> Iterator[None]:
    """Log to standard error while a command runs. Raises UsageError for a level or format that does not exist."""
    level = os.environ.get(LOG_VARIABLE, "") or "warning"
    if level.lower() not in LEVELS:
        raise UsageError(f"{LOG_VARIABLE} is one of {', '.join(LEVELS)}, got {level!r}")
    logging.addLevelName(TRACE, "TRACE")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(log_formatter(ShortFormatter()))
    log = logging.getLogger("ollama_engine")
    level_before = log.level
    log.addHandler(handler)
    log.setLevel(LEVELS[level.lower()])
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(level_before)


if __name__ == "__main__":
    sys.exit(program())
