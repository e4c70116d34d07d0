"""Rooms: what a module of ml/ or runner/ may import. Cython's modules and imports for types alone count, too, which
import-linter does not read.
"""

from __future__ import annotations

import re
from pathlib import Path

from tests.house.each_file import ROOT, for_each, text_of

PACKAGE = ROOT / "ollama_engine"
FLOORS = {
    "ml": ("weights", "ops", "graph", "threads workers", "device gguf", "ggml"),
    "runner": (
        "session embed chat score bulk", "core", "prefix prefix_store observe load speculative", "execute", "schedule",
        "media", "request",
    ),
}  # fmt: skip
"""Rooms of these folders, from the top: each imports those on floors below its own."""
MOST_FILES = 31
IMPORT = re.compile(r"^\s*(?:from|import|cimport) ollama_engine\.(\w+)(?:\.(\w+)| c?import (\w+))", re.MULTILINE)
SAME_FLOOR = {("bulk", "chat")}
"""Types of another room on one's floor: map_batches takes the options of chat, too."""


def floor_of(folder: str) -> dict[str, int]:
    return {room: floor for floor, rooms in enumerate(FLOORS[folder]) for room in rooms.split()}


def modules() -> list[Path]:
    found = [path for folder in FLOORS for path in (PACKAGE / folder).rglob("*.p*")]
    return [path for path in found if path.suffix in (".py", ".pyx", ".pxd") and path.parent.parent != PACKAGE]


@for_each(modules())
def test_a_room_imports_rooms_below_it_only(path: Path) -> None:
    folder, room = path.relative_to(PACKAGE).parts[:2]
    floors = floor_of(folder)
    named = {second or third for first, second, third in IMPORT.findall(text_of(path)) if first == folder} - {room}
    above = {other for other in named if floors[other] <= floors[room] and (room, other) not in SAME_FLOOR}
    assert not above, f"{room}/ imports {', '.join(sorted(above))}, which is on its floor or above"


@for_each(path for folder in FLOORS for path in (PACKAGE / folder).rglob("__init__.py"))
def test_a_folder_is_small_enough_to_look_at(path: Path) -> None:
    files = [each for each in path.parent.iterdir() if each.is_file()]
    assert len(files) <= MOST_FILES, f"has {len(files)} files; a room has {MOST_FILES} at most"
