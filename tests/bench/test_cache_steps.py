"""bench/cache_steps.py: steps behind a context whose keys and values are all there, with each type of cache."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from bench import cache_steps
from ollama_engine.input import Batch
from ollama_engine.runner.load.loading import Loaded
from tests.support.tiny import write_tiny_llama

LINE = re.compile(r"(ours|writing) +(\w+) +(\d+)(?: behind +(\d+)| tokens): +[\d.]+ ms")


def test_steps_follow_the_context(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_tiny_llama(tmp_path / "tiny.gguf", n_embd=128, n_head=4, n_head_kv=2)
    seen, batch = list[tuple[int, int, int]](), cache_steps.batch

    def noted(loaded: Loaded, begin: int, n: int) -> Batch:
        seen.append((begin, n, loaded.cache.usage.used))
        return batch(loaded, begin, n)

    arguments: list[Any] = [tmp_path / "tiny.gguf", "-t", 1, "--contexts", 70, 300, "--types", "f16", "q4_0"]
    with patch.object(cache_steps, "batch", noted), patch.object(cache_steps, "has_tool", lambda name: False):
        cache_steps.main([str(each) for each in [*arguments, "--steps", 2, "--prompts", 1]])
    found = [line.groups() for line in LINE.finditer(capsys.readouterr().out)]
    assert found == [
        ("ours", dtype, n, context) for context in ("70", "300") for n in ("1", "256") for dtype in ("f16", "q4_0")
    ]
    steps = [each for each in seen if each[0]]
    assert all(begin == cells for begin, _, cells in steps), "as many keys as the step's position says"
    assert [(begin, n) for begin, n, _ in steps].count((300, 1)) == 2 * 3


def test_writing_is_measured_alone(capsys: pytest.CaptureFixture[str]) -> None:
    cache_steps.main(["--writing", "--types", "f16", "iq4_nl"])
    found = [line.groups()[:3] for line in LINE.finditer(capsys.readouterr().out)]
    assert found == [("writing", "f16", "256"), ("writing", "iq4_nl", "256")]
