"""Folder -> our converter -> our quantizer: llama.cpp loads the files, finds our perplexity, and quantizes alike.

By goldens that llama.cpp made, and against its tools where they are built.
"""

from __future__ import annotations

import platform
from contextlib import closing
from pathlib import Path

import pytest

from bench.peer_tools import has_tool, tool
from ollama_engine.config import EngineConfig
from ollama_engine.evaluate.perplexity import Perplexity, chunk_logprobs, chunks, scored_from
from ollama_engine.runner.load.loading import load as load_model
from tests.convert.quant.golden import tensor_hash
from tests.convert.quant.make_goldens import quantize
from tests.models import peer_cases
from tests.models.families import Family
from tests.models.peer_cases import CASES, FILES, N_CTX, PRESETS, TEXT, TOLERANCE
from tests.support.suite import slow_except

Files = tuple[Family, dict[str, Path]]


@pytest.fixture(scope="module", params=slow_except(CASES, "llama", "gemma3"), ids=str)
def files(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Files:
    case: Family = request.param
    folder = Path(tmp_path_factory.mktemp(case.name))
    source = peer_cases.write_source(case, peer_cases.load()[case.name], folder)
    return case, peer_cases.write_files(source, folder)


def our_perplexity(path: Path) -> float:
    config = EngineConfig(num_ctx=N_CTX, parallel=1, threads=1, gpu_layers=0, kv_cache_type="f32",
                          flash_attention="off")  # fmt: skip
    perplexity = Perplexity()
    with closing(load_model(path, config, logit_rows=N_CTX - scored_from(N_CTX))) as loaded:
        ids = loaded.tokenizer.encode(TEXT, parse_special=False)
        for chunk in chunks(ids, N_CTX, loaded.tokenizer.bos_id):
            perplexity = perplexity.plus(chunk_logprobs(loaded.executor, loaded.cache, chunk))
    return perplexity.value


def test_every_golden_has_its_case() -> None:
    assert set(peer_cases.load()) == {case.name for case in CASES}


def test_perplexity_is_that_of_llama_cpp(files: Files) -> None:
    case, paths = files
    golden = peer_cases.load()[case.name]["perplexity"]
    for kind in FILES:
        assert our_perplexity(paths[kind]) == pytest.approx(golden[kind], rel=TOLERANCE[kind]), kind


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="other compilers fuse additions otherwise")
def test_quantized_tensors_are_those_of_llama_quantize(files: Files) -> None:
    case, paths = files
    assert {preset: tensor_hash(paths[preset]) for preset in PRESETS} == peer_cases.load()[case.name]["hashes"]


@pytest.mark.skipif(not has_tool("llama-perplexity"), reason="llama-perplexity is not built; see bench/peers.py")
def test_llama_cpp_still_says_so(files: Files) -> None:
    case, paths = files
    golden = peer_cases.load()[case.name]["perplexity"]
    for kind in FILES:
        assert peer_cases.peer_perplexity(paths[kind]) == pytest.approx(golden[kind], rel=TOLERANCE[kind]), kind


@pytest.mark.skipif(not has_tool("llama-quantize"), reason="llama-quantize is not built; see bench/peers.py")
@pytest.mark.parametrize("preset", PRESETS)
def test_quantized_files_are_those_of_llama_quantize(files: Files, preset: str, tmp_path: Path) -> None:
    _, paths = files
    quantize(tool("llama-quantize"), paths["f32"], tmp_path / "theirs.gguf", preset)
    assert paths[preset].read_bytes() == (tmp_path / "theirs.gguf").read_bytes()
