"""MkDocs hooks: the site has a page for each file that docs/ links to, so that every link stays inside of it.

The pages of docs/ are written for readers of the repository: `[engine.py](../ollama_engine/engine.py)`. For the site, a
file beyond docs/ becomes a page below `source/`: Markdown as it is, other text as a block of code, a folder by its
README.md. What these pages link to gets pages, too.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

import ollama_engine
from website import commands

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
BESIDE = "source/"
"""Folder of the site for what lies beyond docs/."""
ALWAYS = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
"""Pages of the navigation, whether a page links to them or not."""
CODE_OR_LINK = re.compile(r"^( *)(`{3,}).*?^ *\2 *$|`[^`\n]+`|(?<=\]\()([^)\s]+)(?=\))", re.MULTILINE | re.DOTALL)
LIST_ITEM = re.compile(r"(?:[-*]|\d+\.) +")
PICTURES = (".png", ".svg")
LANGUAGES = {".py": "python", ".pyx": "cython", ".pxd": "cython", ".c": "c", ".h": "c", ".yaml": "yaml"}
REFERENCE: Mapping[str, tuple[str, ...]] = {
    "The engine": ("Engine", "EngineConfig", "ProcessEngine", "Session"),
    "How to ask": ("SamplingParams", "RequestKeywords", "TemplateKeywords", "ChatKeywords", "ReasoningBudget"),
    "Prompts": ("Text", "Tokens", "Media", "ImageSource", "Message", "ToolCall"),
    "Formats": ("Regex", "Choice", "Lark", "GBNF"),
    "Answers": ("Completion", "Chunk", "ChatResult", "ChatChunk", "Usage", "TokenLogprobs", "Score", "Embedding"),
    "Answers under way": ("Request", "Stream", "AsyncStream", "ChatStream", "AsyncChatStream"),
    "Looking inside": ("ModelInfo", "MetricsSnapshot", "SlotInfo", "MemoryReport", "Device"),
    "Errors": ("EngineError",),
}
"""Sections of the Python reference, and which of the package's names each has."""


def on_files(files: Files, *, config: Any) -> Files:
    """Add the pages beyond docs/, and those of the Python reference and the command line."""
    todo = [ROOT / name for name in ALWAYS]
    for page in sorted(DOCS.rglob("*.md")):
        todo += linked(page)
    while todo:
        path = todo.pop()
        uri = uri_of(path)
        if files.get_file_from_path(uri) is None:
            if path.suffix in PICTURES:
                files.append(File.generated(config, uri, abs_src_path=str(path)))
            else:
                files.append(File.generated(config, uri, content=page_of(path)))
                todo += linked(path) if path.suffix == ".md" else []
    files.append(File.generated(config, "api.md", content=reference()))
    files.append(File.generated(config, "commands.md", content=commands.page()))
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Have links lead to pages of the site, and write lists as Python-Markdown reads them."""
    source = path_of(page.file.src_uri)
    return markdown if source is None else spaced(with_links(markdown, source, page.file.src_uri))


# -- links -------------------------------------------------------------------------------------------------------------


def linked(page: Path) -> Iterator[Path]:
    """The files and folders of the repository that a page of Markdown links to. Those that are not there are left to
    MkDocs, which names them.
    """
    for match in CODE_OR_LINK.finditer(page.read_text(encoding="utf-8")):
        path = target_of(match[3], page)
        if path is not None and path.exists():
            yield path / "README.md" if (path / "README.md").exists() else path


def target_of(link: str | None, page: Path) -> Path | None:
    """The file or folder of the repository that a link leads to; None for addresses, and headings of the page."""
    name = (link or "").partition("#")[0]
    return None if not name or "://" in name else Path(posixpath.normpath(page.parent / name))


def with_links(markdown: str, page: Path, uri: str) -> str:
    """The text with links to the site's pages in place of those to the repository's files."""

    def moved(match: re.Match[str]) -> str:
        path = target_of(match[3], page)
        if path is None or not path.exists():
            return match[0]
        place = posixpath.relpath(uri_of(path), posixpath.dirname(uri) or ".")
        return place + match[3][len(match[3].partition("#")[0]) :]

    return CODE_OR_LINK.sub(moved, markdown)


def uri_of(path: Path) -> str:
    """The source of the site's page for a file or folder of the repository."""
    if path.is_dir():
        return uri_of(path / "README.md")
    if path.is_relative_to(DOCS):
        return path.relative_to(DOCS).as_posix()
    name = path.relative_to(ROOT).as_posix()
    return BESIDE + (name if path.suffix in (".md", *PICTURES) else f"{name}.md")


def path_of(uri: str) -> Path | None:
    """The page of Markdown in the repository that a page of the site is; None for those that are made."""
    path = ROOT / uri.removeprefix(BESIDE) if uri.startswith(BESIDE) else DOCS / uri
    return path if path.is_file() else None


# -- pages -------------------------------------------------------------------------------------------------------------


def page_of(path: Path) -> str:
    """The page for a file beyond docs/."""
    if path.is_dir():
        raise PluginError(f"{path.relative_to(ROOT)} is linked to, and has no README.md: link to a file in it")
    text = path.read_text(encoding="utf-8")
    name = path.relative_to(ROOT).as_posix()
    if path.suffix == ".md":
        return text
    fence = "`" * (3 + max(map(len, re.findall("`{3,}", text)), default=0))
    head = f"---\ntitle: {path.name}\nsearch:\n  exclude: true\n---\n"
    return f"{head}# `{name}`\n\n{fence}{LANGUAGES.get(path.suffix, 'text')}\n{text}\n{fence}\n"


def spaced(markdown: str) -> str:
    """CommonMark as Python-Markdown reads it: a blank line before lists and tables, four spaces in list items."""
    lines: list[str] = []
    marker, fenced, parted, before = 0, False, False, ""
    for line in markdown.splitlines():
        item = None if fenced else LIST_ITEM.match(line)
        is_row, was_row = line.startswith("|"), before.lstrip().startswith("|")
        if before and not fenced and ((item and (not marker or parted)) or (is_row and not was_row)):
            lines.append("")
        if item:
            marker, parted = len(item[0]), False
        elif line and not before and not fenced and not line.startswith(" "):
            marker = 0
        parted |= not line  # a second paragraph of an item: the next item needs a blank line, too
        fenced ^= line.lstrip().startswith("```")
        lines.append(" " * (4 - marker) + line if marker and line.startswith("  ") else line)
        before = line
    return "\n".join(lines) + "\n"


def reference() -> str:
    """The page of the package's public names, by what they are for."""
    told = [name for names in REFERENCE.values() for name in names]
    if missing := set(ollama_engine.__all__) - {*told, "__version__"}:
        raise PluginError(f"website/hooks.py, REFERENCE, has no section for {', '.join(sorted(missing))}")
    sections = [f"## {title}\n\n" + "".join(f"::: ollama_engine.{name}\n\n" for name in names)
                for title, names in REFERENCE.items()]  # fmt: skip
    return "# Python\n\nWhat `ollama_engine` exports.\n\n" + "\n".join(sections)
