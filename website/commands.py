"""The site's page of the command line, made of the parsers that read it: no option can be missing or told otherwise."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator

from ollama_engine.cli.main import ALIASES, EPILOG, command_parsers

__all__ = ["page"]

HEAD = """\
# The command line

What `ollama-engine COMMAND --help` says. [README.md](source/README.md#use-it) has examples.
"""


def page() -> str:
    """Markdown: a section for each command, with its arguments in a table for each group."""
    parts = [HEAD, "```\n" + EPILOG.strip() + "\n```\n"]
    for name, parser in command_parsers().items():
        names = " or ".join(f"`{each}`" for each in (name, *ALIASES.get(name, ())))
        parts += [f"## {names}\n", f"{parser.description}\n"]
        parts += [f"```\n{_call(parser)}\n```\n", *_tables(parser)]
    return "\n".join(parts)


def _call(parser: argparse.ArgumentParser) -> str:
    """How it is called: its positional arguments by name, whatever else it takes as OPTIONS."""
    places = argparse.HelpFormatter(parser.prog, width=1000)
    places.add_usage(None, [action for action in parser._actions if not action.option_strings], [], prefix="")
    named, _, arguments = places.format_help().strip().partition(parser.prog)
    return f"{named}{parser.prog} [OPTIONS]{arguments}"


def _tables(parser: argparse.ArgumentParser) -> Iterator[str]:
    for group in parser._action_groups:
        rows = [_row(parser, action) for action in group._group_actions if action.help is not argparse.SUPPRESS]
        if rows:
            yield f"| {group.title or ''} | |\n|---|---|\n" + "\n".join(rows) + "\n"


def _row(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    formatter = argparse.HelpFormatter(parser.prog)
    told = formatter._expand_help(action) if action.help else ""
    return f"| `{_cell(formatter._format_action_invocation(action))}` | {_cell(_quoted(told))} |"


def _quoted(text: str) -> str:
    """Help as Markdown that shows every character of it; flags are code."""
    plain = re.sub(r"[*_\[\]]", r"\\\g<0>", text.replace("<", "&lt;"))
    return re.sub(r"(?<![\w`])--?[a-z][\w-]*", r"`\g<0>`", plain)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", r"\|")
