"""Each row of `ollama_engine.architectures` has a model, a converter and tests that belong together."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from ollama_engine.architectures import ARCHITECTURES, Registration
from ollama_engine.chat.dialects.detection import DIALECTS
from ollama_engine.convert import registry as converters
from ollama_engine.convert.source.folder import ModelFolder, read_config
from ollama_engine.models import model_class
from tests.models import assistants, eagle_heads, encoders, families, image_encoders
from tests.models.architectures import FOLDER, cases_of, file_of
from tests.models.families import Family
from tests.models.variants import VARIANTS, WRITERS

ROOT = Path(__file__).resolve().parents[2]
TABLE = "ollama_engine/architectures.py"

each_row = pytest.mark.parametrize("row", ARCHITECTURES, ids=lambda row: row.name)


def shown(path: Path) -> str:
    return str(path.relative_to(ROOT))


AnyCase = Family | assistants.Case | eagle_heads.Case | encoders.Case | image_encoders.Case


def module_of(case: AnyCase) -> Any:
    """The module with the goldens of such cases."""
    kinds = {
        Family: families,
        assistants.Case: assistants,
        eagle_heads.Case: eagle_heads,
        encoders.Case: encoders,
        image_encoders.Case: image_encoders,
    }
    return kinds[type(case)]


def test_rows_are_sorted_and_have_names_of_their_own() -> None:
    names = [row.name for row in ARCHITECTURES]
    assert names == sorted(set(names)), f"{TABLE} is sorted by name, each once"


@each_row
def test_its_model_has_its_name(row: Registration) -> None:
    if row.model is None:
        assert row.not_run, f"{TABLE}: {row.name} has no model; say why in not_run"
    else:
        assert model_class(row.name).architecture == row.name, f"{TABLE}: {row.model} is another architecture"


@each_row
def test_its_converter_writes_files_of_its_name(row: Registration) -> None:
    if row.converter is not None:
        made = {a.name for a in import_module(f"ollama_engine.convert.{row.converter}").ARCHITECTURES}
        assert row.name in made, f"ollama_engine/convert/{row.converter}.py writes {sorted(made)}, not {row.name}"


@each_row
def test_its_dialect_is_known(row: Registration) -> None:
    assert not row.dialect or row.dialect in DIALECTS, f"{TABLE}: {row.name} names no dialect of chat.dialects"


def test_every_converter_has_a_row() -> None:
    made = {architecture.name for architecture in converters.architectures()}
    missing = made - {row.name for row in ARCHITECTURES if row.converter is not None}
    assert not missing, f"{TABLE} has no row with a converter for {sorted(missing)}"


@each_row
def test_it_has_cases(row: Registration) -> None:
    file = shown(file_of(row.name))
    cases = cases_of(row.name)
    assert cases, f"{row.name} has no cases: write {file} with CASES, as CONTRIBUTING.md says under 'Add a model'"
    types = {case.dtype for case in cases}
    assert types == {"F32", "BF16"}, f"{file}: weights are published as F32 and as BF16; there are cases of {types}"


@each_row
def test_its_cases_have_goldens(row: Registration) -> None:
    for case in cases_of(row.name):
        kind = module_of(case).FOLDER.name.removesuffix("_goldens")
        golden = module_of(case).FOLDER / f"{case.name}.npz"
        assert golden.exists(), (
            f"{row.name}: no golden {shown(golden)}; `python -m tests.models.make_{kind}_goldens {case.name}` makes "
            "it where torch and transformers are installed (make reference)"
        )


@each_row
def test_its_cases_are_converted_to_it(row: Registration, tmp_path: Path) -> None:
    for case in cases_of(row.name):
        golden: Any = module_of(case).load(case)
        (tmp_path / "config.json").write_text(json.dumps(golden.config), encoding="utf-8")
        if isinstance(case, image_encoders.Case) and case.text is not None:
            (tmp_path / "tokenizer.json").touch()  # by which a folder has more than images
        found = converters.find_architecture(read_config(ModelFolder(tmp_path)))
        assert found.name == row.name, f"{shown(file_of(row.name))}: {case} is converted to {found.name}"


@pytest.mark.parametrize("architecture", WRITERS)
def test_the_contract_tests_run_on_it(architecture: str) -> None:
    assert architecture in {variant.architecture for variant in VARIANTS}, (
        f"{architecture}: no case in {shown(file_of(architecture))} has contract=True"
    )


def test_no_cases_without_a_row() -> None:
    files = {path.name for path in FOLDER.glob("*.py")} - {"__init__.py"}
    left = files - {file_of(row.name).name for row in ARCHITECTURES}
    assert not left, f"no row of {TABLE} is named like {sorted(left)} in {shown(FOLDER)}"
