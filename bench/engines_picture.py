"""Draws how the engine compares with the better peer on each CPU, from the tables of a page, as SVG.

    python bench/engines_picture.py docs/performance-engines.md docs/engines.svg

A bar is the ratio in a table's last column, or the least of its columns "over ...": above 1 the engine is ahead. Of a
CPU's section the first table behind a paragraph with a panel's words counts.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from bench.serving_picture import STYLE

CPUS = ("Zen 5", "Zen 4")
"""Headings of the sections, in the order of the bars."""
PANELS = {"Prompts of 512": "prompt of 512", "Decoding": "one answer", "8 streams": "8 answers at once"}
"""Words of the paragraph before a table, and what its panel is called."""
SAYS = "times as fast as the better of llama.cpp and ik_llama.cpp"
LEFT, TOP, WIDTH, GAP, BAR, MOST = 150, 62, 190, 40, 11, 2.5
"""In SVG's units; MOST is the ratio at a panel's right side."""
ROW = len(CPUS) * BAR + 12

Ratios = Mapping[str, float]
"""By the file's name."""


def ratios(table: Sequence[str]) -> Ratios:
    """Of each row the least number in the columns whose heading begins with "over"."""
    heading, _, *rows = ([cell.strip() for cell in line.strip("| ").split("|")] for line in table)
    over = [i for i, cell in enumerate(heading) if cell.startswith("over ")]
    return {row[0]: min(float(_number(row[i])) for i in over) for row in rows}


def _number(cell: str) -> str:
    found = re.match(r"\*{0,2}(\d+\.?\d*)", cell)
    if found is None:
        raise SystemExit(f"engines_picture: a ratio was expected in a column 'over ...'; got {cell!r}")
    return found[1]


def tables(section: str) -> Mapping[str, Ratios]:
    """The ratios of each panel."""
    found: dict[str, Ratios] = {}
    before = ""
    for block in section.split("\n\n"):
        if block.startswith("|"):
            words = next((words for words in PANELS if words in before), None)
            if words is not None:
                found.setdefault(PANELS[words], ratios(block.strip().splitlines()))
        before = block
    return found


def read(page: str) -> Mapping[str, Mapping[str, Ratios]]:
    """By CPU and panel."""
    sections = dict(re.findall(r"^### (.+?)\n(.*?)(?=^##|\Z)", page, re.MULTILINE | re.DOTALL))
    return {cpu: tables(sections[cpu]) for cpu in CPUS}


def draw(page: str) -> str:
    shown = read(page)
    files = list(dict.fromkeys(file for panels in shown.values() for found in panels.values() for file in found))
    width, height = LEFT + len(PANELS) * (WIDTH + GAP), TOP + len(files) * ROW
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height + 28}" role="img">']
    parts.append(f"<title>Tokens per second: {SAYS}</title>")
    parts.append(f"<style>{STYLE}  .one {{ stroke: #8c959f; stroke-width: 2 }}\n</style>")
    for i, cpu in enumerate(CPUS):
        at = LEFT + 90 * i
        parts.append(f'<circle class="d{i}" cx="{at}" cy="14" r="5"/><text x="{at + 11}" y="18">{cpu}</text>')
    parts.append(f'<text x="{LEFT + 90 * len(CPUS)}" y="18">{SAYS}</text>')
    for i, file in enumerate(files):
        parts.append(f'<text x="{LEFT - 12}" y="{TOP + i * ROW + BAR + 4}" text-anchor="end">{file}</text>')
    for i, panel in enumerate(PANELS.values()):
        parts += _panel(panel, [shown[cpu].get(panel, {}) for cpu in CPUS], files, LEFT + i * (WIDTH + GAP))
    return "\n".join([*parts, "</svg>\n"])


def _panel(panel: str, sides: Sequence[Ratios], files: Sequence[str], left: int) -> Iterable[str]:
    bottom = TOP + len(files) * ROW
    yield f'<text class="title" x="{left}" y="{TOP - 18}">{panel}</text>'
    for mark in (0.5, 1, 1.5, 2):
        x = left + WIDTH * mark / MOST
        yield f'<line class="{"one" if mark == 1 else "grid"}" x1="{x}" x2="{x}" y1="{TOP - 8}" y2="{bottom}"/>'
        yield f'<text x="{x}" y="{bottom + 18}" text-anchor="middle">{mark:g}</text>'
    for i, file in enumerate(files):
        for side, found in enumerate(sides):
            if file not in found:
                continue
            y, long = TOP + i * ROW + side * (BAR + 2), WIDTH * min(found[file], MOST) / MOST
            yield f'<rect class="d{side}" x="{left}" y="{y}" width="{long:.1f}" height="{BAR}"/>'
            yield f'<text x="{left + long + 4:.1f}" y="{y + BAR - 1}">{found[file]:.2f}</text>'


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("page", type=Path)
    parser.add_argument("picture", type=Path)
    args = parser.parse_args()
    args.picture.write_text(draw(args.page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
