"""Downloads what the collected tests need, before the first of them runs: their limits are not for that.

Where nothing can be downloaded, the tests skip or fail by themselves.
"""

from __future__ import annotations

from contextlib import suppress

import pytest

from tests.plugins.key_suites import SUITES
from tests.support import suite


def pytest_collection_finish(session: pytest.Session) -> None:
    if not suite.exhaustive or session.config.getoption("collectonly"):
        return
    from bench.real_model import GEMMA3, real_model  # noqa: PLC0415 (few runs need it)
    from tests.chat import real_templates  # noqa: PLC0415
    from tests.sample.constraints import official  # noqa: PLC0415

    modules = {item.nodeid.partition("::")[0] for item in session.items}
    if modules & {*SUITES["templates of published models"], *SUITES["injection"]}:
        with suppress(pytest.skip.Exception):
            real_templates.folder()
    if modules & {*SUITES["the JSON Schema suite"]}:
        official.suite_folder()
    if any("smollm2_path" in getattr(item, "fixturenames", ()) for item in session.items):
        real_model()
    if any("gemma3_path" in getattr(item, "fixturenames", ()) for item in session.items):
        GEMMA3.path()
