"""The chat templates of published models that the pinned source distribution holds."""

from __future__ import annotations

from pathlib import Path

from tests.support.pinned_sources import pinned

N_TEMPLATES = 70


def folder() -> Path:
    """Where they lie."""
    return pinned("templates", "templates/*.jinja", N_TEMPLATES)


def sources() -> dict[str, str]:
    """{file name without its ending: template}."""
    return {path.stem: path.read_text(encoding="utf-8") for path in sorted(folder().glob("*.jinja"))}
