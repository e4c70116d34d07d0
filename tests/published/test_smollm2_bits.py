"""Same seed, same tokens, of a published model: what a request is answered depends on nothing but the request."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ollama_engine import Engine
from tests.same_bits import OURS, differing
from tests.suite import slow_except

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
    pytest.mark.timeout(600),
    pytest.mark.skipif(not OURS, reason="products or attention are ggml's on this CPU, and round as they come"),
]


@pytest.mark.parametrize("case", slow_except(CASES, "off"))
def test_whatever_else_is_asked(smollm2_path: Path, case: str) -> None:
    text, options = CASES[case]
    with Engine(smollm2_path, num_ctx=512, parallel=4, threads=1, **options) as engine:
        assert differing(engine, engine.tokenize(text)) == []
