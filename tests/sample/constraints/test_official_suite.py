"""The official JSON-Schema-Test-Suite: nothing invalid is written, and what is refused is told with its keyword."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.sample.constraints import official
from tests.support import suite

KNOWN = {("optional/ecmascript-regex.json", '"\ufeff"')}
r"""\s and \S are those of Unicode, where U+FEFF is no white space; ECMAScript's is."""


@pytest.fixture(scope="module")
def folder() -> Path:
    found = official.suite_folder(download=suite.exhaustive)
    if found is None:
        pytest.skip("the JSON-Schema-Test-Suite is not in the cache; make test-all downloads it, if it can")
    return found


@pytest.mark.slow
@pytest.mark.parametrize("draft", official.DRAFTS)
def test_nothing_invalid_is_taken(folder: Path, draft: str) -> None:
    seen = list(official.cases(folder, draft))
    wrong = {(case.file, text) for case in seen for text in case.wrongly_taken} - KNOWN
    assert wrong == set()
    refused = [case.refused for case in seen if case.refused is not None]
    assert len(refused) < 0.6 * len(seen)
    for error in refused:
        assert error.pointer is not None
        assert error.keyword is not None or "Resource" in str(error) or "a schema is" in str(error), str(error)


@pytest.mark.slow
def test_the_table_in_the_guide(folder: Path) -> None:
    """`python -m tests.sample.constraints.official` writes it."""
    assert official.table(folder) in official.DOCS.read_text(encoding="utf-8")
