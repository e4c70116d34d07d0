"""Reads the text files under `data/`: sections, blocks and lines.

`# ...` is a comment, `== name` opens a section, blank lines part its blocks. A line that is a lone `-` stands for
nothing said. Templates are explained in `grammar`.
"""

from __future__ import annotations

from pathlib import Path

Block = tuple[str, ...]
Sections = dict[str, tuple[Block, ...]]

FOLDER = Path(__file__).with_name("data")
ARROW = " => "


def read_sections(path: Path) -> Sections:
    """Every section of the file with its blocks of lines."""
    found: dict[str, list[list[str]]] = {}
    blocks: list[list[str]] = [[]]
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("== "):
            blocks = found.setdefault(line[3:], [[]])
        elif not line:
            blocks.append([])
        elif not line.startswith("#"):
            blocks[-1].append("" if line == "-" else line)
    return {name: tuple(tuple(block) for block in blocks if block) for name, blocks in found.items()}


def lines(sections: Sections, name: str) -> Block:
    """The lines of a section, blocks joined; none if the file lacks the section."""
    return tuple(line for block in sections.get(name, ()) for line in block)


def words(sections: Sections, name: str) -> tuple[str, ...]:
    """The words of a section."""
    return tuple(" ".join(lines(sections, name)).split())


def columns(line: str) -> tuple[str, ...]:
    """The parts of a line between its arrows."""
    return tuple(line.split(ARROW))
