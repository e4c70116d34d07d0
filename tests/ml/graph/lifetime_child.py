"""Runs one scene that would end the process if lifetimes or threads were handled wrongly.

Run by test_lifetimes.py: python -m tests.ml.graph.lifetime_child NAME. A scene passes when its process exits with 0.
"""

from __future__ import annotations

import faulthandler
import sys

from tests.ml.graph import scenes_owners, scenes_small_batch, scenes_system, scenes_threads
from tests.ml.graph.scenes import SCENES

__all__ = ["SCENES", "scenes_owners", "scenes_small_batch", "scenes_system", "scenes_threads"]

if __name__ == "__main__":
    faulthandler.enable()
    SCENES[sys.argv[1]]()
