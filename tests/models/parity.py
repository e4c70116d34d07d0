"""How far our models are from transformers', for every architecture: `make parity`, or for some of them

    python -m tests.models.parity [architecture ...]

Compares with goldens, and with transformers itself where torch is installed. Without names it writes the table of
docs/models.md, whose texts are the docstrings of the models' files.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from ollama_engine.architectures import ARCHITECTURES, Registration
from ollama_engine.convert import convert_model
from tests.models import encoders, families, image_encoders
from tests.models.architectures import cases_of
from tests.models.cases import difference
from tests.models.families import Family
from tests.models.family_reference import FamilyReference

ROOT = Path(__file__).resolve().parents[2]
MODELS = ROOT / "ollama_engine/models"
PAGE = ROOT / "docs/models.md"
BEGIN, END = "<!-- Written by `make parity`. -->\n", "<!-- The end of what it writes. -->\n"
HEAD = (
    "| architecture | file | in transformers | what is special | difference | ours, theirs from float64 |\n"
    "|---|---|---|---|---:|---:|\n"
)  # fmt: skip


@dataclass(frozen=True)
class Measured:
    """What was measured of some cases, in standard deviations of transformers' values."""

    largest: float
    """The largest difference."""
    ours: float = 0.0
    theirs: float = 0.0
    """Root of the mean square of what ours, and what transformers' float32, is away from transformers' float64; 0 where
    that was not computed."""

    def __str__(self) -> str:
        parts = (_short(self.largest), f"{_short(self.ours)}, {_short(self.theirs)}" if self.theirs else "")
        return " | ".join(parts)


def _short(number: float) -> str:
    return f"{number:.0e}".replace("e-0", "e-")


@dataclass(frozen=True)
class Entry:
    """One file of models in the gallery."""

    architectures: tuple[str, ...]
    path: str
    """Below ollama_engine/models."""
    lines: int
    """Rounded to tens."""
    classes: tuple[str, ...]
    """The models' classes in transformers."""
    special: str
    found: Measured | None = None

    def __str__(self) -> str:
        names = ", ".join(f"`{name}`" for name in self.architectures)
        file = f"[`{self.path}`](../ollama_engine/models/{self.path}), {self.lines} lines"
        return f"| {names} | {file} | {', '.join(self.classes)} | {self.special} | {self.found or ' | '} |"


def entries() -> list[Entry]:
    """One for each file, in the order of names, nothing measured."""
    rows = sorted((row for row in ARCHITECTURES if row.model), key=lambda row: (_module(row), row.name))
    made = [_entry(module, [row.name for row in group]) for module, group in groupby(rows, _module)]
    return sorted(made, key=lambda entry: entry.architectures)


def _module(row: Registration) -> str:
    """The file that is worth reading: the text part of a model that reads images."""
    module = str(row.model).split(":")[0]
    text = module.replace(".model", ".text")
    return text if (MODELS / f"{text.replace('.', '/')}.py").exists() else module


def _entry(module: str, names: Sequence[str]) -> Entry:
    found = import_module(f"ollama_engine.models.{module}")
    path = Path(str(found.__file__))
    cases = [case for name in names for case in cases_of(name)]
    return Entry(
        tuple(names),
        f"{module.replace('.', '/')}.py",
        max(10, round(len(path.read_text(encoding="utf-8").splitlines()), -1)),
        tuple(dict.fromkeys(_class_of(case) for case in cases)),
        _special(str(found.__doc__)),
    )


def _class_of(case: Any) -> str:
    return str(case.model if isinstance(case, image_encoders.Case) else case.class_name)


def _special(doc: str) -> str:
    """The paragraph behind a module's first line, without its sources."""
    paragraphs = [" ".join(part.split()) for part in doc.split("\n\n")]
    text = paragraphs[1] if len(paragraphs) > 1 else paragraphs[0]
    return re.sub(r"\s*Sources?: .*", "", text).replace("|", "\\|").rstrip(".")


# -- measuring ---------------------------------------------------------------------------------------------------------


def measured(architecture: str, folder: Path, *, live: bool = False) -> Measured:
    """The largest of all cases; of distances to float64, those of the case that is farthest away."""
    found = [measure for case in cases_of(architecture) for measure in _measure(case, folder, live)]
    return largest_of(found)


def largest_of(found: Iterable[Measured]) -> Measured:
    each = list(found)
    farthest = max(each, key=lambda one: one.ours)
    return replace(farthest, largest=max(one.largest for one in each))


def _measure(case: Any, folder: Path, live: bool) -> Iterator[Measured]:
    if isinstance(case, Family):
        yield _of_logits(case, folder) if not live else _of_live_logits(case, folder)
    else:
        yield Measured(max(_differences(case, folder)))


def _differences(case: Any, folder: Path) -> Iterator[float]:
    if isinstance(case, image_encoders.Case):
        golden = image_encoders.load(case)
        with case.engine(image_encoders.converted(case, folder)) as engine:
            found = engine.embed_image([picture.file for picture in image_encoders.PICTURES], normalize=False)
            yield difference(found, golden.vectors)
            if case.text is not None:
                yield difference(engine.embed(list(image_encoders.TEXTS), normalize=False), golden.texts)
    elif case.ranks:
        with case.engine(encoders.converted(case, folder)) as engine:
            yield abs(float(engine.rank(encoders.QUERY, [encoders.DOCUMENT])[0]) - float(encoders.load(case).score[0]))
    else:
        expected = encoders.load(case)
        with case.engine(encoders.converted(case, folder)) as engine:
            (rows,) = engine.embeddings([case.prompt], pooling="none", normalize=False)
        yield difference(rows.vector[expected.rows], expected.hidden)


def _of_logits(case: Family, folder: Path) -> Measured:
    golden = families.load(case)
    with case.engine(families.converted(case, folder)) as engine:
        return Measured(difference(engine.logits(case.prompt)[golden.rows], golden.logits))


def _of_live_logits(case: Family, folder: Path) -> Measured:
    reference = FamilyReference(case, folder / f"{case.name}-source")
    path, expected = folder / f"{case.name}-live.gguf", reference.logits(case.prompt)
    convert_model(reference.folder, path, "f32")
    with case.engine(path) as engine:
        found = engine.logits(case.prompt)
    exact = reference.exact_logits(case.prompt)
    ours, theirs = (float(np.sqrt(np.mean((rows - exact) ** 2)) / exact.std()) for rows in (found, expected))
    return Measured(difference(found, expected), ours, theirs)


# -- the page ----------------------------------------------------------------------------------------------------------


def table(page: str) -> str:
    """The part of the page that is written here."""
    return page[page.index(BEGIN) + len(BEGIN) : page.index(END)]


def main(names: list[str]) -> None:
    live = find_spec("torch") is not None and find_spec("transformers") is not None
    done = []
    with tempfile.TemporaryDirectory() as folder:
        for entry in entries():
            chosen = [name for name in entry.architectures if not names or name in names]
            if chosen:
                found = largest_of(measured(name, Path(folder), live=live) for name in chosen)
                done.append(replace(entry, found=found))
                print(f"{', '.join(chosen):50} {found}", flush=True)
    if not names:
        page = PAGE.read_text(encoding="utf-8")
        text = HEAD + "".join(f"{entry}\n" for entry in done)
        before, after = page[: page.index(BEGIN)], page[page.index(END) :]
        PAGE.write_text(f"{before}{BEGIN}{text}{after}", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
