"""What does loading cost? The header of a file, the tables of its tokenizer, and a whole model.

The file that OLLAMA_ENGINE_BENCH_MODEL names is loaded too. Files lie in the system's page cache after the first round.
Twin: the reader of the gguf package, in Python. Peer: llama.cpp in this process; it reads a header together with the
tables. Groups are questions; within one the rows compare. Run:
`python -m pytest bench/bench_load.py --benchmark-enable --benchmark-group-by=group`.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import gguf
import pytest

from bench.conftest import MODEL_VARIABLE
from bench.peer_llama import Llama
from ollama_engine import demo
from ollama_engine.config import EngineConfig
from ollama_engine.ml.gguf.gguf_file import GGUFFile
from ollama_engine.runner.load.loading import load
from ollama_engine.tokenizer import from_metadata

if TYPE_CHECKING:
    from pytest_benchmark.fixture import BenchmarkFixture

HEADER = "read the header of a file with 128,256 tokens"
TABLES = "header and tokenizer tables of Llama 3"
NUM_CTX, BATCH = 1024, 512


def read_header(path: str) -> None:
    with GGUFFile(path) as file:
        len(file.metadata)


def test_header(benchmark: BenchmarkFixture, thin_1b: str) -> None:
    benchmark.group = HEADER
    benchmark(read_header, thin_1b)


@pytest.mark.twin
def test_header_python(benchmark: BenchmarkFixture, thin_1b: str) -> None:
    benchmark.group = HEADER
    benchmark.pedantic(gguf.GGUFReader, args=(thin_1b,), rounds=1)


def read_tables(path: str) -> None:
    with GGUFFile(path) as file:
        from_metadata(file.metadata)


def test_tables(benchmark: BenchmarkFixture, real_vocabulary: str) -> None:
    benchmark.group = TABLES
    benchmark.pedantic(read_tables, args=(real_vocabulary,), rounds=5, warmup_rounds=1)


@pytest.mark.peer
def test_tables_peer(benchmark: BenchmarkFixture, llama: Llama, real_vocabulary: str) -> None:
    benchmark.group = TABLES
    benchmark.pedantic(llama.load_vocabulary, args=(real_vocabulary,), rounds=5, warmup_rounds=1)


def test_demo_tables(benchmark: BenchmarkFixture) -> None:
    benchmark.group = "header and tokenizer tables of the demo"
    benchmark(read_tables, str(demo.path()))


def load_and_close(path: str) -> None:
    load(path, EngineConfig(num_ctx=NUM_CTX, parallel=1, batch_size=BATCH, threads=1)).close()


def named_model() -> str:
    path = os.environ.get(MODEL_VARIABLE)
    if not path:
        pytest.skip(f"{MODEL_VARIABLE} names no file")
    return path


def test_load_demo(benchmark: BenchmarkFixture) -> None:
    benchmark.group = "load the demo and free it"
    benchmark.pedantic(load_and_close, args=(str(demo.path()),), rounds=10, warmup_rounds=1)


@pytest.mark.peer
def test_load_demo_peer(benchmark: BenchmarkFixture, llama: Llama) -> None:
    benchmark.group = "load the demo and free it"
    benchmark.pedantic(llama.load, args=(str(demo.path()), NUM_CTX, BATCH, 1), rounds=10, warmup_rounds=1)


def test_load_named(benchmark: BenchmarkFixture) -> None:
    path = named_model()
    benchmark.group = f"load {os.path.basename(path)} and free it"
    benchmark.pedantic(load_and_close, args=(path,), rounds=3, warmup_rounds=1)


@pytest.mark.peer
def test_load_named_peer(benchmark: BenchmarkFixture, llama: Llama) -> None:
    path = named_model()
    benchmark.group = f"load {os.path.basename(path)} and free it"
    benchmark.pedantic(llama.load, args=(path, NUM_CTX, BATCH, 1), rounds=3, warmup_rounds=1)
