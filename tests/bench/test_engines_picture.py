"""docs/engines.svg shows what the tables of docs/performance-engines.md say."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from bench import engines_picture
from tests.house.each_file import ROOT

PAGE = ROOT / "docs/performance-engines.md"
SMALL = """### Zen 5
Measured on Zen 5. Prompts of 512 tokens:

| file | ollama_engine | llama.cpp | over the best |
|---|---:|---:|---:|
| a Q4_0 | 30 | 20 | **1.50** |
| b Q8_0 | 10 | 20 | **0.50** |

Loading:

| file | ollama_engine | llama.cpp | over the best |
|---|---:|---:|---:|
| a Q4_0 | 3 | 2 | **0.66** |

### Zen 4
Decoding, by turns:

| file | ollama_engine | over llama.cpp | over -rtr |
|---|---:|---:|---:|
| a Q4_0 | 9 | **1.10** (0.9 to 1.2) | **0.95** (0.9 to 1.0) |
"""


def test_the_picture_is_that_of_the_tables() -> None:
    command = "python bench/engines_picture.py docs/performance-engines.md docs/engines.svg"
    drawn = engines_picture.draw(PAGE.read_text(encoding="utf-8"))
    assert (ROOT / "docs/engines.svg").read_text(encoding="utf-8") == drawn, f"draw it again: {command}"


def test_every_panel_has_every_cpu() -> None:
    shown = engines_picture.read(PAGE.read_text(encoding="utf-8"))
    for cpu in engines_picture.CPUS:
        assert set(shown[cpu]) == set(engines_picture.PANELS.values())
        assert all(len(found) >= 6 for found in shown[cpu].values())


def test_the_worst_ratio_of_a_row_counts() -> None:
    assert engines_picture.read(SMALL) == {
        "Zen 5": {"prompt of 512": {"a Q4_0": 1.5, "b Q8_0": 0.5}},
        "Zen 4": {"one answer": {"a Q4_0": 0.95}},
    }


def test_bars_are_as_long_as_their_ratios() -> None:
    root = ET.fromstring(engines_picture.draw(SMALL))
    widths = [float(bar.get("width", "")) for bar in root.iter("{http://www.w3.org/2000/svg}rect")]
    assert widths == pytest.approx([engines_picture.WIDTH * each / engines_picture.MOST for each in (1.5, 0.5, 0.95)])


def test_a_cell_without_a_number_is_refused() -> None:
    with pytest.raises(SystemExit, match=r"a ratio was expected .* got '-'"):
        engines_picture.draw(SMALL.replace("**1.50**", "-"))
