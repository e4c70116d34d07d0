"""What does a format cost? Compiling it, finding it compiled, and a mask for each token, with 128,256 tokens.

Groups are questions. Run: `python -m pytest bench/bench_format.py --benchmark-enable --benchmark-only`. How fast
answers come with one is `bench/constrained.py`'s question.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pytest

from ollama_engine.sample.constraints.compiler import GrammarCompiler
from ollama_engine.sample.constraints.matcher import GrammarConstraint
from ollama_engine.sample.constraints.vocabulary import make_vocabulary
from ollama_engine.tokenizer import Tokenizer, from_gguf

if TYPE_CHECKING:
    from pytest_benchmark.fixture import BenchmarkFixture

KINDS = ("string", "integer", "boolean", "number")


def schema(n: int, title: str = "") -> dict[str, Any]:
    """An object of n properties, all required."""
    properties = {f"property_{i}": {"type": KINDS[i % 4], "description": "what it is about"} for i in range(n)}
    return {"type": "object", "title": title, "properties": properties, "required": list(properties)}


@pytest.fixture(scope="module")
def tokenizer(thin_1b: str) -> Tokenizer:
    return from_gguf(thin_1b)


@pytest.fixture(scope="module")
def compiler(tokenizer: Tokenizer) -> GrammarCompiler:
    made = GrammarCompiler(tokenizer, tokenizer.n_vocab)
    made.constraint("json")
    return made


def test_vocabulary(benchmark: BenchmarkFixture, tokenizer: Tokenizer) -> None:
    benchmark.group = "tables of a vocabulary, once for each engine"
    benchmark.pedantic(make_vocabulary, args=(tokenizer, tokenizer.n_vocab), rounds=2)


def test_compile(benchmark: BenchmarkFixture, compiler: GrammarCompiler) -> None:
    benchmark.group = "a schema of 200 properties"
    fresh = (schema(200, str(i)) for i in itertools.count())
    benchmark.pedantic(compiler.constraint, setup=lambda: ((next(fresh),), {}), rounds=10)


def test_compiled_before(benchmark: BenchmarkFixture, compiler: GrammarCompiler) -> None:
    benchmark.group = "a schema of 200 properties"
    same = schema(200)
    benchmark.pedantic(compiler.constraint, args=(same,), rounds=50, warmup_rounds=1)


@pytest.mark.parametrize("where", ["text", "number", "name"])
def test_mask(benchmark: BenchmarkFixture, compiler: GrammarCompiler, tokenizer: Tokenizer, where: str) -> None:
    """The mask of the next token, where the answer stands in a text, in a number, or before a name."""
    benchmark.group = "a token mask"
    begun = {"text": '{"property_0":"a', "number": '{"property_0":"a","property_1":1', "name": "{"}[where]
    ids = tokenizer.encode(begun, add_special=False, parse_special=False, continues=True)

    def setup() -> tuple[tuple[GrammarConstraint], dict[str, Any]]:
        return (compiler.constraint(schema(200), ids),), {}

    benchmark.pedantic(GrammarConstraint.make_mask, setup=setup, rounds=50, warmup_rounds=1)
