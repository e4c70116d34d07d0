"""docs/from-*.md: what the last column of their tables names is there, and every call in it runs."""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
import shlex
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

import ollama_engine
from ollama_engine import Engine, EngineConfig, SamplingParams, demo
from ollama_engine.cli.main import _parser
from ollama_engine.option_names import NOT_HERE, meant
from ollama_engine.runner.chat.options import ChatOptions
from ollama_engine.runner.chat.results import ChatChunk, ChatResult
from ollama_engine.runner.request.options import RequestOptions
from ollama_engine.runner.request.results import Chunk

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = sorted(DOCS.glob("from-*.md"))
OPTIONS = [
    *(option.name for cls in (EngineConfig, SamplingParams, RequestOptions, ChatOptions) for option in fields(cls)),
    "model", "projector", "images",
]  # fmt: skip
NAMES = {*OPTIONS, *dir(Engine), *dir(ChatChunk), *dir(Chunk), *dir(ChatResult), *ollama_engine.__all__}
"""What a word alone may be."""


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8").replace('"model.gguf"', repr(str(demo.path())))


def rows(page: Path, section: str = "") -> list[tuple[list[str], list[str]]]:
    """The code of each table's first and last column, row by row: of a page, or of its part behind a heading."""
    lines = re.findall(r"^\| (.*) \|$", text_of(page)[text_of(page).index(section) :], re.MULTILINE)
    cells = [line.split(" | ") for line in lines]
    return [tuple(re.findall(r"`([^`]+)`", cell) for cell in (row[0], row[-1])) for row in cells]  # type: ignore[misc]


def last_column() -> list[Any]:
    """Every code of the last columns that is no call."""
    return [
        pytest.param(code, id=f"{page.stem} {code}")
        for page in PAGES
        for _, codes in rows(page)
        for code in codes
        if not is_call(code)
    ]


def is_call(code: str) -> bool:
    return not code.startswith("ollama-engine ") and "(" in code


@pytest.mark.parametrize("page", PAGES, ids=[page.stem for page in PAGES])
def test_every_call_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # some write files
    names: dict[str, Any] = {"__name__": page.stem}
    for block in re.findall(r"```python\n(.*?)```", text_of(page), flags=re.DOTALL):
        exec(compile(block, page.name, "exec", dont_inherit=True), names)
    for call in [code for _, codes in rows(page) for code in codes if is_call(code)]:
        try:
            run(call, names)
        except Exception as error:
            raise AssertionError(f"{page.name}: {call}") from error
    names["engine"].close()


def run(call: str, names: dict[str, Any]) -> None:
    """Evaluate an expression, and close what it makes."""
    value = eval(compile(call, "table", "eval", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True), names)
    if inspect.iscoroutine(value):
        value = asyncio.run(value)
    if hasattr(value, "close"):
        value.close()


@pytest.mark.parametrize("code", last_column())
def test_every_name_is_there(code: str) -> None:
    if code.startswith("ollama-engine "):
        args = _parser().parse_args(shlex.split(code)[1:])
        assert callable(args.command)
    elif code.startswith("/"):
        pytest.importorskip("fastapi", reason="the extra `server` is not installed")
        from ollama_engine.server.app import create_app  # noqa: PLC0415 (needs an extra)
        from ollama_engine.server.settings import ServerSettings  # noqa: PLC0415

        assert code in create_app(ServerSettings()).openapi()["paths"]
    else:
        first, *rest = code.split(".")
        assert first == "engine" or code in NAMES, f"{code} is no name of ours"
        assert not rest or hasattr(Engine, rest[0]), f"an Engine has no {rest[0]}"


def test_an_option_is_the_one_that_the_hints_name() -> None:
    """`n_ctx` beside `num_ctx` in a table, and "did you mean num_ctx?" where it is typed."""
    seen = 0
    for page in [page for page in PAGES if "## Options" in text_of(page)]:
        for theirs, ours in rows(page, "## Options"):
            for name in filter(str.isidentifier, theirs):
                if ours and ours[0] in OPTIONS:
                    assert name in NOT_HERE or meant(name, OPTIONS) == ours[0], (page.name, name, ours)
                    seen += 1
    assert seen > 40


def test_what_is_no_option_here_has_a_hint() -> None:
    for page in PAGES:
        section = text_of(page).partition("## Options")[2].partition("## Not here")[0]
        for row in re.findall(r"^\| (.*) \| nothing", section, re.MULTILINE):
            for name in re.findall(r"`([^`]+)`", row):
                assert name in NOT_HERE, (page.name, name)
