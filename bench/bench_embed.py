"""How many texts become vectors in a second? Texts of one length, encoders of real shapes, two threads.

Ours is `Engine.embed` of strings, tokens and pooling included. Twin: transformers with torch, of tokens, with the mean
of the hidden states, in float32 and in bfloat16, of which the faster counts (a run's JSON has both); skipped where they
are not installed. Peer: what llama-embedding reports of computing the same texts, without cutting them into tokens;
skipped where it is not built. Seconds are for one text. Run:
`python -m pytest bench/bench_embed.py --benchmark-enable --benchmark-group-by=group`.
"""

from __future__ import annotations

import re
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from bench import peer_tools
from bench.make_encoder import SHAPES, text_of, write_encoder
from bench.reported import report, shortest
from ollama_engine import Engine
from ollama_engine.cli.measure.bench.parts import SETTLING

if TYPE_CHECKING:
    from pytest_benchmark.fixture import BenchmarkFixture

pytestmark = pytest.mark.timeout(600)

THREADS = 2
ROUNDS = 3
LENGTHS = (16, 128, 512)
MODELS = (("minilm", "f16"), ("minilm", "q8_0"), ("bert-base", "f16"), ("bert-base", "q8_0"),
          ("gemma", "f16"), ("gemma", "q8_0"))  # fmt: skip
TOKENS = {"minilm": 4096, "bert-base": 1024, "gemma": 1024}
"""Tokens of all texts of a measurement."""
PEER_BATCH = 512
"""Tokens of a batch of llama.cpp."""

Case = tuple[str, str, int]


CASES = [(*model, n) for model in MODELS for n in LENGTHS]


@pytest.fixture(scope="module", params=CASES, ids=lambda case: "-".join(map(str, case)))
def case(request: pytest.FixtureRequest) -> Case:
    """A shape, a type and the tokens of a text."""
    found: Case = request.param
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("encoders")


@pytest.fixture
def path(case: Case, folder: Path) -> str:
    shape, kind, _ = case
    path = folder / f"{shape}-{kind}.gguf"
    if not path.exists():
        write_encoder(str(path), SHAPES[shape], kind)
    return str(path)


@pytest.fixture
def measuring(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--benchmark-enable"))


def texts_of(case: Case, *, measuring: bool) -> list[str]:
    shape, _, n = case
    return [text_of(n, i) for i in range(TOKENS[shape] // n if measuring else 1)]


def group(case: Case) -> str:
    shape, kind, n = case
    return f"embed a text of {n} tokens, {shape} {kind}"


def test_embed(benchmark: BenchmarkFixture, case: Case, path: str, measuring: bool) -> None:
    benchmark.group = group(case)
    texts = texts_of(case, measuring=measuring)
    with Engine(path, threads=THREADS) as engine:
        assert len(engine.tokenize(texts[0])) == case[2]
        if measuring:
            settle(engine, texts)
        report(benchmark, shortest(lambda: engine.embed(texts), ROUNDS if measuring else 1, warm=True) / len(texts))
        if measuring and engine.metrics.threads < THREADS:
            warnings.warn("the machine is busy: fewer threads computed than were asked for", stacklevel=1)


def settle(engine: Engine, texts: list[str]) -> None:
    """Compute until all threads do, as `ollama-engine bench` warms up."""
    end = time.monotonic() + SETTLING
    engine.embed(texts)
    while engine.metrics.threads < THREADS and time.monotonic() < end:
        engine.embed(texts)


@pytest.fixture
def two_threads() -> Iterator[Any]:
    torch = pytest.importorskip("torch")
    before = torch.get_num_threads()
    torch.set_num_threads(THREADS)
    yield torch
    torch.set_num_threads(before)


@pytest.mark.twin
def test_transformers(benchmark: BenchmarkFixture, case: Case, two_threads: Any, measuring: bool) -> None:
    benchmark.group = group(case)
    transformers = pytest.importorskip("transformers")
    if not measuring:
        pytest.skip("nothing to try where nothing is measured")
    torch, shape, n = two_threads, SHAPES[case[0]], case[2]
    sizes = {"hidden_size": shape.n_embd, "num_hidden_layers": shape.n_layer, "num_attention_heads": shape.n_head,
             "intermediate_size": shape.n_ff, "vocab_size": shape.n_vocab}  # fmt: skip
    if shape.head_dim:
        config = transformers.Gemma3TextConfig(**sizes, head_dim=shape.head_dim, num_key_value_heads=1,
                                               use_bidirectional_attention=True)  # fmt: skip
        model = transformers.Gemma3TextModel(config).eval()
    else:
        model = transformers.BertModel(transformers.BertConfig(**sizes), add_pooling_layer=False).eval()
    rows = 32 if n < 512 else 8
    ids = torch.randint(5, shape.n_vocab, (rows, n))
    with torch.inference_mode():
        for dtype in ("float32", "bfloat16"):
            model.to(getattr(torch, dtype))
            found = shortest(lambda: model(ids).last_hidden_state.mean(1), ROUNDS, warm=True)
            benchmark.extra_info[dtype] = found / rows
    report(benchmark, min(benchmark.extra_info[dtype] for dtype in ("float32", "bfloat16")))


@pytest.mark.peer
def test_llama_embedding(benchmark: BenchmarkFixture, case: Case, path: str, folder: Path, measuring: bool) -> None:
    benchmark.group = group(case)
    if not peer_tools.has_tool("llama-embedding"):
        pytest.skip("llama-embedding is not built: python bench/peers.py build")
    if not measuring:
        pytest.skip("nothing to try where nothing is measured")
    texts = texts_of(case, measuring=True)
    batch = texts[: PEER_BATCH // case[2]]

    def seconds(given: list[str]) -> float:
        file = folder / "texts.txt"
        file.write_text("\n".join(given), encoding="utf-8")
        command = [peer_tools.tool("llama-embedding"), "-m", path, "-f", str(file), "-t", str(THREADS),
                   "-b", str(PEER_BATCH), "-ub", str(PEER_BATCH), "-v"]  # fmt: skip
        return computing_seconds(peer_tools.run(command).stderr, len(given) * case[2])

    # The tool counts the tokens of its first batch, and not that batch's time.
    report(benchmark, min(seconds([*batch, *texts]) - seconds(batch) for _ in range(ROUNDS)) / len(texts))


def computing_seconds(output: str, n_tokens: int) -> float:
    """Seconds that llama.cpp reports for its batches, which hold so many tokens."""
    match = re.search(r"prompt eval time = +([0-9.]+) ms / +([0-9]+) tokens", output)
    assert match is not None, f"llama-embedding reports no time:\n{output[-2000:]}"
    assert int(match[2]) == n_tokens
    return float(match[1]) / 1e3
