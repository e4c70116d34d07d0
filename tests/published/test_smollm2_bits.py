"""Same seed, same tokens, of a published model: what a request is answered depends on nothing but the request."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ollama_engine import Engine
from tests.plugins.not_run_here import NOT_HERE
from tests.support.same_bits import OURS, differing
from tests.support.suite import slow_except

TEXT = "The Apollo program was a series of flights to the Moon. " * 8
SHORT = "In 1969, NASA"
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "off": (SHORT, {"flash_attention": "off"}),
    "off, long": (TEXT + SHORT, {"flash_attention": "off"}),
    "auto, long": (TEXT + SHORT, {}),
    "q8_0, long": (TEXT + SHORT, {"kv_cache_type": "q8_0"}),
}

pytestmark = [
    pytest.mark.cpu_only,
    pytest.mark.skipif(not OURS, reason=f"{NOT_HERE}kernels of ours for attention and Q8_0"),
]


@pytest.mark.parametrize("case", slow_except(CASES, "off"))
def test_whatever_else_is_asked(smollm2_path: Path, case: str) -> None:
    text, options = CASES[case]
    with Engine(smollm2_path, num_ctx=512, parallel=4, threads=1, **options) as engine:
        assert differing(engine, engine.tokenize(text)) == []
