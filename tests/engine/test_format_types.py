"""A type checker knows what `parsed` is: an instance of the type that `format` was given."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
from dataclasses import dataclass
from typing import Any, TypedDict
from typing_extensions import assert_type
from ollama_engine import ChatResult, Completion, Engine, Regex, SamplingParams

@dataclass
class Score:
    points: int

class Row(TypedDict):
    name: str

def threads(engine: Engine) -> None:
    assert_type(engine.chat([], format=Score), ChatResult[Score])
    assert_type(engine.chat([], SamplingParams(), format=Score, max_tokens=4, tool_choice="none").parsed, Score)
    assert_type(engine.generate("a", format=list[int]).parsed, list[int])
    assert_type(engine.generate("a", format=Row, temperature=0).parsed, Row)
    assert_type(engine.generate("a", format=Score, n=2), list[Completion[Score]])
    assert_type(engine.generate(["a", "b"], format=Score)[0].parsed, Score)

def of_any_type(engine: Engine) -> None:
    assert_type(engine.chat([]), ChatResult[Any])
    assert_type(engine.chat([], format="json").parsed, Any)
    assert_type(engine.generate("a", format={"type": "integer"}).parsed, Any)
    assert_type(engine.generate("a", format=Regex("[0-9]")).parsed, Any)
    assert_type(engine.generate(["a", "b"]), list[Completion[Any]])

async def tasks(engine: Engine) -> None:
    assert_type((await engine.achat([], format=Score)).parsed, Score)
    assert_type((await engine.agenerate("a", format=Score)).parsed, Score)
    assert_type((await engine.agenerate(["a"], format=Score))[0].parsed, Score)
"""


@pytest.mark.slow
@pytest.mark.timeout(300)  # mypy reads the package, unless it has done so before
def test_parsed_has_the_type_of_the_format(tmp_path: Path) -> None:
    pytest.importorskip("mypy", reason="mypy is not installed (extra: lint); CI has it")
    program = tmp_path / "typed_program.py"
    program.write_text(PROGRAM, encoding="utf-8")
    command = [sys.executable, "-m", "mypy", "--strict", str(program)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
