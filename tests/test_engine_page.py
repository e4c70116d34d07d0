"""The page at the head of engine.py names all that an Engine can do, and nothing else."""

from __future__ import annotations

import re

import ollama_engine.engine
from ollama_engine import Engine

NAMES = re.compile(r"[a-z_]+(, [a-z_]+)*")


def test_the_page_names_every_method() -> None:
    page = ollama_engine.engine.__doc__ or ""
    table = page.partition("\n\n")[2].partition("\n\n")[0].replace("chat_template(s)", "chat_template, chat_templates")
    cells = [cell for line in table.splitlines() for cell in re.split(r"\s{2,}", line[25:]) if NAMES.fullmatch(cell)]
    named = [name for cell in cells for name in cell.split(", ")]
    assert sorted(named) == sorted(name for name in dir(Engine) if not name.startswith("_"))
