"""Makes the packages under `examples/` importable, after everything that is installed."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "examples"))
