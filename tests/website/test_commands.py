"""The site's page of the command line: what each command's --help names, and nothing that Markdown would swallow."""

from __future__ import annotations

import re

import pytest

from ollama_engine.cli.main import COMMANDS, main
from website import commands

PAGE = commands.page()


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_of_a_command_is_in_its_section(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([command, "--help"])
    flags = set(re.findall(r"^  +(?:-\w[^,]*, )?(--[\w-]+)", capsys.readouterr().out, re.MULTILINE))
    (section,) = re.findall(rf"^## `{command}`.*?$(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    in_rows = set(re.findall(r"--[\w-]+", " ".join(re.findall(r"^\| `([^`]*)` \|", section, re.MULTILINE))))
    assert flags >= {"--help"}
    assert flags <= in_rows


def test_no_help_becomes_markup() -> None:
    """Outside of code there is no tag, and no character that begins emphasis."""
    prose = re.sub(r"```.*?```|`[^`\n]*`", "", PAGE.partition("\n## ")[2], flags=re.DOTALL)
    assert not re.findall(r"(?<!\\)[*_<\[]\w+", prose)
