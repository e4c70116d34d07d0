"""Moves: the plan of a shift, as cell numbers."""

from __future__ import annotations

from typing import NamedTuple

from ollama_engine.input import Int32Array


class Moves(NamedTuple):
    """Cells whose contents go to other cells; a cell may also be its own target. No target is another's source."""

    sources: Int32Array
    targets: Int32Array
