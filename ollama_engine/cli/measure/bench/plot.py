"""The results of `bench` as a picture: tokens/s by the number of callers and by the depth of the context.

Prompts and answers differ by an order of magnitude, so each has its own panel. All axes start at 0. Needs matplotlib,
which only this module imports, without a window system and without its global state.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ollama_engine.cli.errors import UsageError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["apart", "check", "draw"]

ENDINGS = (".png", ".svg", ".pdf")
PARTS = (("decode", "tab:blue"), ("prefill", "tab:orange"))
"""(name in the result, colour), from top to bottom."""
COLUMNS = (
    ("parallel", "streams", "all callers together", "callers at once"),
    ("depth", "depth", "one caller", "tokens in the context before"),
)
"""(list in the result, key of what varies, whose tokens, label of the axis), from left to right."""
PANEL_INCHES = (5.0, 3.2)
TITLE_INCHES = 0.9
DOTS_PER_INCH = 150
TICK_GAP, LABEL_GAP = 0.05, 0.09
"""Smallest distance between two labels, as a share of the axis."""


def check(path: str) -> None:
    """Raise UsageError or OSError before measuring, where the picture could not be drawn afterwards."""
    try:
        import matplotlib  # noqa: F401, PLC0415 (an extra)
    except ImportError:
        raise UsageError("--plot needs matplotlib: pip install matplotlib") from None
    if Path(path).suffix.lower() not in ENDINGS:
        raise UsageError(f"--plot writes a file whose name ends in {', '.join(ENDINGS)}; got {path!r}")
    if not Path(path).parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(Path(path).parent))


def draw(result: dict[str, Any], path: str) -> None:
    """Write the picture of a result, in the format that the name's ending says. Raises OSError."""
    from matplotlib.figure import Figure  # noqa: PLC0415 (an extra)

    columns = [column for column in COLUMNS if result[column[0]]]
    parts = [part for part in PARTS if result["samples"][f"{part[0]}_tps"]]
    width, height = PANEL_INCHES
    figure = Figure(figsize=(width * len(columns), height * len(parts) + TITLE_INCHES), layout="constrained")
    panels = figure.subplots(len(parts), len(columns), squeeze=False)
    for row, (name, colour) in enumerate(parts):
        for panel, (measured, key, whose, label) in zip(panels[row], columns, strict=True):
            _draw_panel(panel, sorted(result[measured], key=itemgetter(key)), key, f"{name}_tps", colour)
            panel.set_title(f"{name}, {whose}", fontsize="medium")
            panel.set_xlabel(label)
            panel.set_ylabel("tokens/s")
    figure.suptitle(_title(result), fontsize="medium")
    figure.savefig(path, dpi=DOTS_PER_INCH)


def _draw_panel(panel: Axes, measured: Sequence[dict[str, Any]], key: str, name: str, colour: str) -> None:
    """Medians as a line with their values, every sample as a dot."""
    at = [each[key] for each in measured]
    for each in measured:
        samples = each["samples"][name]
        panel.plot([each[key]] * len(samples), samples, ".", color=colour, alpha=0.35, markersize=5)
    panel.plot(at, [each[name] for each in measured], "o-", color=colour)
    labelled = apart(at, LABEL_GAP)
    for each in measured:
        if each[key] in labelled:
            panel.annotate(_speed(each[name]), (each[key], each[name]), xytext=(0, 7), textcoords="offset points",
                           ha="center", fontsize="small")  # fmt: skip
    last = max(1, at[-1])
    panel.set_xlim(min(0, at[0] - 0.06 * last), 1.08 * last)
    panel.set_xticks(apart(at, TICK_GAP))
    panel.set_ylim(0, 1.15 * max(sample for each in measured for sample in each["samples"][name]))
    panel.grid(alpha=0.3)
    panel.spines[["top", "right"]].set_visible(False)


def apart(values: Sequence[int], gap: float) -> list[int]:
    """The ascending `values` to label: each at least `gap` times the largest above the one kept before it."""
    kept: list[int] = []
    for value in values:
        if not kept or value - kept[-1] >= gap * values[-1]:
            kept.append(value)
    return kept


def _speed(tokens_per_second: float) -> str:
    return f"{tokens_per_second:,.0f}" if tokens_per_second >= 100 else f"{tokens_per_second:.3g}"


def _title(result: dict[str, Any]) -> str:
    threads, repetitions = result["threads"], result["repetitions"]
    return (
        f"{Path(result['model']).name}: prompts of {result['n_prompt']} tokens, answers of {result['n_gen']}\n"
        f"{', '.join(result['devices'])}, {threads} thread{'s' if threads > 1 else ''}, "
        f"{result['kv_cache_type']} cache; ollama_engine {result['version']}, ggml {result['ggml_version']}\n"
        f"line: median of {repetitions}; dots: each run"
    )
