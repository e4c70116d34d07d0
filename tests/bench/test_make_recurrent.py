"""bench/make_recurrent.py writes files of recurrent models that compute here and in the pinned llama.cpp."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.make_recurrent import SHAPES, RecurrentShape, tensor_types, write_recurrent
from bench.peer_tools import has_tool, tool
from ollama_engine import Engine

SMALL: dict[str, dict[str, Any]] = {
    "qwen35": {"layers": "MMM*", "n_head": 2, "n_head_kv": 1, "n_heads": 2, "n_groups": 2, "d_inner": 256},
    "qwen35moe": {"layers": "MMM*", "n_head": 2, "n_head_kv": 1, "n_heads": 4, "n_groups": 2, "d_inner": 512,
                  "n_expert": 16},
    "nemotron-h": {"layers": "M*-", "n_head": 2, "n_head_kv": 1, "n_heads": 4, "n_groups": 2, "d_inner": 256},
    "lfm2": {"layers": "M*", "n_head": 4, "n_head_kv": 2},
    "mamba2": {"layers": "M", "n_ff": 0, "n_heads": 4, "d_inner": 256},
    "granite-hybrid": {"layers": "M*", "n_head": 4, "n_head_kv": 2, "n_heads": 4, "d_inner": 512},
    "falcon-h1": {"layers": "+", "n_head": 4, "n_head_kv": 2, "n_heads": 4, "d_inner": 256},
}  # fmt: skip


def small(name: str) -> RecurrentShape:
    return replace(SHAPES[name], **{"n_embd": 256, "n_ff": 256, "n_vocab": 600, **SMALL[name]})


@pytest.mark.parametrize("name", SHAPES)
def test_a_file_computes(tmp_path: Path, name: str) -> None:
    path = str(tmp_path / "small.gguf")
    write_recurrent(path, small(name), "q8_0")
    with Engine(path, num_ctx=64) as engine:
        assert engine.generate("abc", max_tokens=4).usage.completion_tokens >= 1
    if has_tool("llama-bench"):
        subprocess.run([tool("llama-bench"), "-m", path, "-t", "1", "-r", "1", "-p", "4", "-n", "2"], check=True)


@pytest.mark.parametrize(
    ("name", "tensor", "expected"),
    [("qwen35", "blk.0.ssm_conv1d.weight", "F32"), ("qwen35", "blk.0.attn_qkv.weight", "Q6_K"),
     ("nemotron-h", "blk.0.ssm_in.weight", "Q5_0"), ("lfm2", "token_embd.weight", "Q6_K")],
)  # fmt: skip
def test_types(name: str, tensor: str, expected: str) -> None:
    """Those of llama.cpp's presets; rows of 4480 are no whole blocks of 256."""
    assert tensor_types("q4_k_m", SHAPES[name])[tensor].name == expected
