"""The Python in the guides that talks to a server runs as it stands, but for the port."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SERVER = "http://127.0.0.1:11434"
BLOCKS = [
    pytest.param(block, id=f"{guide}-{number}")
    for guide in ("README.md", "docs/server.md")
    for number, block in enumerate(re.findall(r"```python\n(.*?)```", (ROOT / guide).read_text("utf-8"), re.DOTALL))
    if SERVER in block
]


@pytest.mark.parametrize("block", BLOCKS)
def test_python_block_runs(block: str, demo_server: str, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip(block.split()[1], reason="the extra `clients` is not installed")
    names: dict[str, object] = {}
    exec(compile(block.replace(SERVER, demo_server), "guide", "exec"), names)
    assert capsys.readouterr().out.strip()
    close = getattr(names["client"], "close", None)
    if close is not None:
        close()


def test_the_table_has_all_settings() -> None:
    from ollama_engine.server.settings import SETTINGS  # noqa: PLC0415

    guide = (ROOT / "docs" / "server.md").read_text("utf-8")
    for setting in SETTINGS.values():
        assert f"| `{setting.variable}` | `--" in guide
