"""Draws the figures that `bench/serving.py --json` keeps: three panels over the number of clients, as SVG.

    python bench/serving_picture.py serving.json docs/serving.svg

Written as text: a page in light or in dark colours shows it in its own (`prefers-color-scheme`).
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Rows = Sequence[dict[str, Any]]

STYLE = """
  text { font: 12px system-ui, sans-serif; fill: #1f2328 } .title { font-weight: 600 } .grid { stroke: #d1d9e0 }
  .s0 { stroke: #0969da; fill: none } .s1 { stroke: #bc4c00; fill: none } .d0 { fill: #0969da } .d1 { fill: #bc4c00 }
  .tail { stroke-dasharray: 5 4 } polyline { stroke-width: 2 }
  @media (prefers-color-scheme: dark) {
    text { fill: #f0f6fc } .grid { stroke: #3d444d }
    .s0 { stroke: #58a6ff } .s1 { stroke: #f0883e } .d0 { fill: #58a6ff } .d1 { fill: #f0883e }
  }
"""
WIDTH, HEIGHT, LEFT, TOP, GAP = 220, 180, 56, 56, 84


@dataclass(frozen=True)
class Panel:
    """One diagram: `solid` is a key of the rows, `dashed` another one, in the same unit."""

    title: str
    solid: str
    dashed: str = ""
    per: float = 1.0
    """What a value of the rows is divided by."""
    logarithmic: bool = False


PANELS = (
    Panel("tokens/s: answers", "answer_tps"),
    Panel("first token, s: p50, p99 dashed", "first_p50", "first_p99", 1000.0, logarithmic=True),
    Panel("per token, ms: p50, p99 dashed", "token_p50", "token_p99", logarithmic=True),
)


def ticks(panel: Panel, least: float, most: float) -> list[float]:
    """Round numbers from `least` or below to `most` or above."""
    if panel.logarithmic:
        low, high = math.floor(math.log10(least)), math.ceil(math.log10(most))
        return [10.0**power for power in range(low, max(high, low + 1) + 1)]
    step = 10 ** math.floor(math.log10(most))
    step = next(step * part for part in (0.2, 0.5, 1, 2) if most <= 5 * step * part)
    return [step * i for i in range(math.ceil(most / step) + 1)]


def draw(rows: Rows) -> str:
    names = list(dict.fromkeys(row["server"] for row in rows))
    clients = sorted({row["clients"] for row in rows})
    width = LEFT + len(PANELS) * (WIDTH + GAP) - GAP + 20
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {TOP + HEIGHT + 44}" role="img">']
    parts += [f"<title>Answers and latencies of {' and '.join(names)} by clients</title>", f"<style>{STYLE}</style>"]
    for i, name in enumerate(names):
        at = LEFT + 170 * i
        parts.append(f'<circle class="d{i}" cx="{at}" cy="14" r="5"/><text x="{at + 11}" y="18">{name}</text>')
    for i, panel in enumerate(PANELS):
        parts += _panel(panel, [[row for row in rows if row["server"] == name] for name in names], clients,
                        LEFT + i * (WIDTH + GAP))  # fmt: skip
    return "\n".join([*parts, "</svg>\n"])


def _panel(panel: Panel, sides: Sequence[Rows], clients: Sequence[int], left: int) -> Iterable[str]:
    keys = [key for key in (panel.solid, panel.dashed) if key]
    every = [row[key] / panel.per for rows in sides for key in keys for row in rows]
    scale = math.log10 if panel.logarithmic else float
    marks = ticks(panel, min(every), max(every))
    low, high = scale(marks[0]), scale(marks[-1])

    def x(n: int) -> float:
        return left + WIDTH * math.log2(n / clients[0]) / max(1.0, math.log2(clients[-1] / clients[0]))

    def y(value: float) -> float:
        return TOP + HEIGHT * (1 - (scale(value) - low) / (high - low))

    yield f'<text class="title" x="{left - 30}" y="{TOP - 14}">{panel.title}</text>'
    for mark in marks:
        yield f'<line class="grid" x1="{left}" x2="{left + WIDTH}" y1="{y(mark):.1f}" y2="{y(mark):.1f}"/>'
        yield f'<text x="{left - 6}" y="{y(mark) + 4:.1f}" text-anchor="end">{mark:g}</text>'
    for n in clients:
        yield f'<text x="{x(n):.1f}" y="{TOP + HEIGHT + 18}" text-anchor="middle">{n}</text>'
    yield f'<text x="{left + WIDTH / 2}" y="{TOP + HEIGHT + 36}" text-anchor="middle">clients</text>'
    for i, rows in enumerate(sides):
        for key in keys:
            points = [(x(row["clients"]), y(row[key] / panel.per)) for row in rows]
            tail = " tail" if key == panel.dashed else ""
            yield f'<polyline class="s{i}{tail}" points="{" ".join(f"{a:.1f},{b:.1f}" for a, b in points)}"/>'
            yield from (f'<circle class="d{i}" cx="{a:.1f}" cy="{b:.1f}" r="3"/>' for a, b in points)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("figures", type=Path)
    parser.add_argument("picture", type=Path)
    args = parser.parse_args()
    args.picture.write_text(draw(json.loads(args.figures.read_text(encoding="utf-8"))), encoding="utf-8")


if __name__ == "__main__":
    main()
