"""Whole models: the header of a tiny llama is damaged, the model is loaded and asked for a token."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ollama_engine import Engine, SamplingParams
from ollama_engine.errors import EngineError
from ollama_engine.ml.gguf.gguf_file import GGUFFile
from tests.support.tiny import write_tiny_llama

WORDS = (
    b"llama", b"llama.block_count", b"llama.embedding_length", b"llama.attention.head_count", b"llama.context_length",
    b"llama.attention.head_count_kv", b"llama.rope.freq_base", b"llama.rope.scaling.type", b"yarn", b"linear",
    b"llama.expert_count", b"llama.expert_used_count", b"llama.attention.sliding_window", b"llama.vocab_size",
    b"blk.0.attn_q.weight", b"rope_freqs.weight", b"output.weight", b"qwen2", b"gemma3", b"general.alignment",
    b"\x20\0\0\0\0\0\0\0", b"\0\0\0\0\1\0\0\0", b"\xff\xff\xff\xff", b"\0\0\xc0\x7f",
)  # fmt: skip
SIZE = 320
"""Of the vocabulary; the smallest that the tiny model takes is about as large."""
SMALL: dict[str, Any] = {"num_ctx": 64, "threads": 1, "gpu_layers": 0, "parallel": 1, "batch_size": 16}


def seeds() -> Iterable[bytes]:
    with tempfile.TemporaryDirectory() as folder:
        for changes in ({}, {"n_expert": 2, "n_layer": 1}, {"rope_scaling": {"type": "yarn", "factor": 2.0}}):
            yield header_of(write_tiny_llama(Path(folder) / "tiny.gguf", n_embd=32, n_ff=32, **changes).path)


def header_of(path: str | Path) -> bytes:
    """A file up to its weights."""
    with GGUFFile(path) as file:
        end = min(info.offset for info in file.tensors.values())
    return Path(path).read_bytes()[:end]


@contextmanager
def opened(folder: Path) -> Iterator[Callable[[bytes], bool]]:
    path = folder / "model.gguf"
    weights = bytes(range(48, 56)) * (1 << 15)  # small numbers, read as any type of float

    def run(data: bytes) -> bool:
        path.write_bytes(data + weights)
        return answers(path)

    yield run


def answers(path: Path, **options: Any) -> bool:
    try:
        with Engine(path, **{**SMALL, **options}) as engine:
            completion = engine.generate("ab", SamplingParams(temperature=0, max_tokens=2))
            assert len(completion.tokens) <= 2
            return True
    except EngineError:
        return False
