"""Which kernels a model is loaded with: measured, as kept in a file, or by the table."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import NoReturn

import pytest

from ollama_engine import Engine, SamplingParams, user_cache
from ollama_engine.config import EngineConfig
from ollama_engine.ml.gguf.gguf_file import GGUFFile
from ollama_engine.ml.ops.small_batch import SMALL_BATCH_VARIANTS, small_batch_instructions
from ollama_engine.ml.weights import kernel_choice, kernel_samples
from ollama_engine.ml.weights.kernel_choice import BY_TABLE, GGML, KernelChoice, choice_by_table
from ollama_engine.ml.weights.kernel_variants import FEW_ROWS, FewRows
from ollama_engine.runner.load import kernels
from tests.models.variants import loaded
from tests.support.tiny import write_tiny_llama

pytestmark = [
    pytest.mark.skipif(len(small_batch_instructions("q4_0")) < 2, reason="this CPU has no kernels but plain C"),
    pytest.mark.cpu_only,
]
CONFIG = EngineConfig(threads=1)


@pytest.fixture
def path(tmp_path: Path) -> str:
    made = tmp_path / "tiny.gguf"
    write_tiny_llama(made, dtype="q8_0", n_embd=256, n_ff=512)
    return str(made)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder for times; the weights of a tiny model are large enough, and the machine is idle."""
    monkeypatch.setattr(user_cache, "cache_folder", lambda: tmp_path / "cache")
    monkeypatch.setattr(kernel_samples, "last_level_cache", lambda: 0)
    monkeypatch.setattr(kernel_samples, "SAMPLE_BYTES", 1 << 10)
    monkeypatch.setattr(kernels, "MEASURE_SECONDS", 30)  # emulated CPUs need more than what is given otherwise
    monkeypatch.setattr(kernels, "waiting_threads", lambda: -1)
    return tmp_path / "cache"


def chosen(path: str, config: EngineConfig = CONFIG) -> KernelChoice:
    with GGUFFile(path) as gguf:
        return kernels.choose_kernels(gguf, config)


def never(*_: object, **__: object) -> NoReturn:
    raise AssertionError("measured")


def test_the_first_load_measures_and_the_second_reads(
    path: str, folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    first = chosen(path)
    assert first.measured[0].startswith("q8_0: ")
    assert set(first.variants) == {*BY_TABLE.variants, *(FewRows("q8_0", n, False) for n in FEW_ROWS)}
    assert f"kernels: {first.measured[0]}" in caplog.text
    assert [file.name for file in folder.iterdir()] == [kernels.timings_file(1).path.name]
    monkeypatch.setattr(kernels, "measure", never)
    assert chosen(path) == first
    with pytest.raises(AssertionError, match="measured"):
        chosen(path, EngineConfig(threads=2))


def test_other_kinds_are_added(path: str, folder: Path, tmp_path: Path) -> None:
    write_tiny_llama(tmp_path / "other.gguf", dtype="q4_0", n_embd=256, n_ff=512)
    assert [line[:4] for line in chosen(path).measured] == ["q8_0"]
    assert [line[:4] for line in chosen(str(tmp_path / "other.gguf")).measured] == ["q4_0"]
    assert {few.dtype for few in kernels.timings_file(1).read()} == {"q8_0", "q4_0"}


def test_off(path: str, folder: Path) -> None:
    assert chosen(path, EngineConfig(threads=1, measure_kernels=False)) is BY_TABLE
    assert not folder.exists()


def test_by_the_table_where_nothing_can_be_kept(
    path: str, folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    folder.write_bytes(b"")
    monkeypatch.setattr(kernels, "measure", never)
    assert chosen(path) is BY_TABLE
    assert "their times cannot be kept" in caplog.text


def test_by_the_table_while_the_machine_is_busy(path: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "waiting_threads", lambda: 1)
    assert chosen(path) == BY_TABLE
    assert not folder.exists()


def test_by_the_table_where_other_devices_compute(path: str, folder: Path) -> None:
    assert chosen(path, EngineConfig(threads=1, devices=("CUDA0",))) is BY_TABLE
    assert chosen(path, EngineConfig(threads=1, devices=("CUDA0",), gpu_layers=0)) is not BY_TABLE


def test_a_damaged_file_is_measured_anew(path: str, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    chosen(path)
    file = kernels.timings_file(1)
    kept = file.path.read_bytes()
    file.path.write_bytes(kept[:-9])
    assert chosen(path).measured
    assert "is damaged" in caplog.text
    assert file.read()


def test_a_slow_kernel_that_is_kept_as_the_fastest_gives_the_same_answer(path: str, folder: Path) -> None:
    """And the engine tells what it uses."""
    answers = set()
    for variant in SMALL_BATCH_VARIANTS:
        times = {FewRows("q8_0", n, False): {variant: 0.01, "spread": 1.0} for n in FEW_ROWS}
        kernels.timings_file(1).write(times | {FewRows("q8_0", 1, False): {variant: 0.01}})
        with Engine(path, threads=1, num_ctx=128) as engine:
            assert variant in engine.info.kernels[0]
            result = engine.generate("One day", SamplingParams(max_tokens=12, temperature=0, logprobs=1))
            answers.add((result.text, str(result.logprobs)))
    assert len(answers) == 1


@pytest.mark.parametrize("f32_alike", [True, False])
@pytest.mark.parametrize("n_expert", [0, 4])
@pytest.mark.parametrize(
    ("dtype", "alike", "not_alike"),
    [
        ("f32", ["avx512vnni", "amx", "avx2"], []),
        ("q8_0", ["avx512vnni", "amx", "avx2"], []),
        ("f16", ["avx512vnni"], ["amx", "avx2"]),
        ("bf16", ["avx512vnni"], ["avx512vnni-intel", "avxvnni"]),
    ],
)
def test_rows_are_alike_where_one_kernel_computes_any_number_of_them(
    tmp_path: Path, dtype: str, alike: list[str], not_alike: list[str], n_expert: int, f32_alike: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Elsewhere a draft of an F16 model had other log-probabilities than its tokens one by one.

    Where ggml's products of f32 depend on the number of rows (ARM64), that holds for models without any: experts are
    chosen by one. Norms are no products.
    """
    monkeypatch.setattr(kernel_choice, "ROWS_OF_F32_ALIKE", f32_alike)
    if not f32_alike and (n_expert or dtype == "f32"):
        alike, not_alike = [], [*alike, *not_alike]
    path = write_tiny_llama(tmp_path / "tiny.gguf", dtype=dtype, n_embd=256, n_ff=512, n_expert=n_expert).path
    with loaded(path) as parts:
        found = {cpu: kernels.rows_are_alike(choice_by_table(cpu), parts.weights, 32) for cpu in [*alike, *not_alike]}
        assert found == {**dict.fromkeys(alike, True), **dict.fromkeys(not_alike, False)}
        assert not kernels.rows_are_alike(GGML, parts.weights, 32)
