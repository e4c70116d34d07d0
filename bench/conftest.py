"""All benchmarks share this: which side a row is on, how fast the machine was while it ran, and the files they load."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench import peer_llama
from bench.calibration import calibrate, unit
from bench.make_model import write_model
from bench.shapes import THIN_1B, THIN_3B
from ollama_engine import demo

MODEL_VARIABLE = "OLLAMA_ENGINE_BENCH_MODEL"
MARKERS = (
    "twin: the plain way to the same result, in numpy or Python; at most one in a group",
    "peer: another engine's way to the same result; at most one in a group",
)


def pytest_configure(config: pytest.Config) -> None:
    for marker in MARKERS:
        config.addinivalue_line("markers", marker)


@pytest.fixture(autouse=True)
def _noted(request: pytest.FixtureRequest) -> Iterator[None]:
    """The side, and the calibration loop before and after, are noted with the times."""
    if "benchmark" not in request.fixturenames:
        yield
        return
    benchmark = request.getfixturevalue("benchmark")
    marks = {mark.name for mark in request.node.iter_markers()}
    benchmark.extra_info["side"] = next((side for side in ("twin", "peer") if side in marks), "ours")
    if benchmark.disabled:
        yield
        return
    before = calibrate()
    yield
    benchmark.extra_info["calibration_s"] = unit(before, calibrate())


@pytest.fixture(scope="session")
def thin_1b(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A file with the layers, cache and vocabulary of Llama 3.2 1B, and thin matrices."""
    path = tmp_path_factory.mktemp("models") / "thin-1b.gguf"
    write_model(str(path), THIN_1B, "f16")
    return str(path)


@pytest.fixture(scope="session")
def thin_3b(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The same of Llama 3.2 3B, with a small vocabulary."""
    path = tmp_path_factory.mktemp("models") / "thin-3b.gguf"
    write_model(str(path), THIN_3B, "f16")
    return str(path)


@pytest.fixture(scope="session")
def given_model() -> str:
    """The file that the environment names; the demo where it names none."""
    return os.environ.get(MODEL_VARIABLE) or str(demo.path())


@pytest.fixture(scope="session")
def real_vocabulary() -> str:
    """Llama 3's vocabulary: it lies in the peer's sources, and in no file of ours."""
    found = peer_llama.vocabulary("llama-bpe")
    if found is None:
        pytest.skip(peer_llama.MISSING)
    return str(found)


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> peer_llama.Llama:
    """llama.cpp in this process; skips where it is not built."""
    folder: Path = tmp_path_factory.mktemp("peer")
    found = peer_llama.find(folder)
    if found is None:
        pytest.skip(peer_llama.MISSING)
    return found
