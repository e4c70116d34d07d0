"""Measuring kernels: on a file of small weights, with a kernel that was made slow."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import pytest

from ollama_engine.ml.device.cpu_facts import cpu_identity, last_level_cache
from ollama_engine.ml.device.placement import BackendParams
from ollama_engine.ml.gguf.gguf_file import TensorInfo
from ollama_engine.ml.gguf.model_file import ModelFile
from ollama_engine.ml.graph.backend import Backend
from ollama_engine.ml.graph.tensor import Tensor
from ollama_engine.ml.graph.types import block_of
from ollama_engine.ml.ops.small_batch import mul_mat_small_batch, small_batch_instructions, small_batch_variants
from ollama_engine.ml.weights import kernel_measure, kernel_samples
from ollama_engine.ml.weights.kernel_choice import ALL, Borders, KernelChoice
from ollama_engine.ml.weights.kernel_measure import measure
from ollama_engine.ml.weights.kernel_samples import PLAIN_READ, Kind, kinds_of
from ollama_engine.ml.weights.kernel_timings import GGML, REPACKED, decide
from ollama_engine.ml.weights.kernel_variants import FEW_ROWS, FewRows

pytestmark = pytest.mark.skipif(len(small_batch_instructions("q4_0")) < 2, reason="this CPU has no kernels but plain C")
LONG = 20.0
"""Seconds: more than is needed, on a busy machine as well."""


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Samples of 64 KiB, and a CPU without caches."""
    monkeypatch.setattr(kernel_samples, "last_level_cache", lambda: 0)
    monkeypatch.setattr(kernel_samples, "SAMPLE_BYTES", 1 << 16)
    monkeypatch.setattr(kernel_samples, "PART_BYTES", 1 << 15)


@pytest.fixture
def backend() -> Iterator[Backend]:
    with Backend(BackendParams(threads=1, devices=()), max_nodes=64) as made:
        yield made


def info(dtype: str, *shape: int, name: str = "blk.0.w") -> TensorInfo:
    block, size = block_of(dtype)
    return TensorInfo(name, dtype, shape, 0, math.prod(shape) // block * size, 0)


@pytest.fixture
def file(tmp_path: Path) -> Iterator[ModelFile]:
    """1 MiB in which every type of weights has small numbers."""
    path = tmp_path / "weights"
    path.write_bytes(b"\x2c" * (1 << 20))
    made = ModelFile(str(path))
    yield made
    made.close()


def test_kinds_of_weights(small: None) -> None:
    tensors = [
        info("q8_0", 256, 2048), info("q4_K", 256, 4096), info("q4_K", 256, 512, 8), info("q6_K", 256, 64),
        info("q8_0", 256, 9999, name="v.blk.0.w"), info("f32", 256, 9999), info("iq1_s", 256, 99_999),
        info("f16", 256, 99, 99), info("q4_0", 99_999_968),
    ]  # fmt: skip
    assert list(kinds_of(tensors)) == [Kind("q4_K", False), Kind("q4_K", True), Kind("q8_0", False)]


def test_all_of_small_matrices_and_whole_parts_of_large_ones_are_measured(small: None) -> None:
    tensors = [info("q4_0", 1024, n) for n in (32, 33, 40, 100, 31)] + [info("q4_0", 1024, 8, 70)]
    assert [part.shape for part in kernel_samples._parts(tensors)[:6]] == [
        (1024, 32), (1024, 32), (1024, 32), (1024, 32), (1024, 32), (1024, 32)
    ]  # fmt: skip
    assert kernel_samples._parts(tensors[-1:])[0].shape == (1024, 8, 14)
    assert kernel_samples._parts([info("q4_0", 1024, 512, 8)])[0].shape == (1024, 512, 2)
    assert kernel_samples._parts([info("q4_0", 1024, 512, 1)]) == []


def test_weights_that_a_cache_holds_are_not_measured(small: None, monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = [info("q4_0", 4096, 1024)]
    assert kinds_of(tensors)
    monkeypatch.setattr(kernel_samples, "last_level_cache", lambda: 2 << 20)
    assert not kinds_of(tensors)


def test_all_kernels_take_part(small: None, backend: Backend, file: ModelFile) -> None:
    """Also of experts, of which there are repacked copies."""
    weighed = kinds_of([info("q8_0", 1024, 512), info("q4_0", 512, 512, 7)])
    assert len(weighed) == 2
    timings = measure(backend, [file.mapping()], weighed, LONG, everything=True)
    assert set(timings) == {FewRows(*kind[:1], n, kind[1]) for kind in weighed for n in FEW_ROWS}
    for few, times in timings.items():
        variants = set(small_batch_variants(few.dtype, few.rows))
        assert {*variants, GGML, PLAIN_READ} <= set(times) <= {*variants, GGML, REPACKED, PLAIN_READ}
        assert all(0 < seconds < LONG * 1e9 for seconds in times.values())


@pytest.mark.parametrize("slow", ["spread", "l2"])
def test_a_slowed_kernel_is_not_chosen(
    small: None, backend: Backend, file: ModelFile, monkeypatch: pytest.MonkeyPatch, slow: str
) -> None:
    def slowed(a: Tensor, b: Tensor, instructions: str | None = None, variant: str = "spread") -> Tensor:
        return mul_mat_small_batch(a, b, "scalar" if variant == slow else instructions, variant)

    monkeypatch.setattr(kernel_samples, "mul_mat_small_batch", slowed)
    timings = measure(backend, [file.mapping()], kinds_of([info("q4_0", 1024, 912)]), LONG)
    choice = decide(KernelChoice({"q4_0": Borders(1, ALL)}), timings)
    assert slow not in {choice.variant("q4_0", n) for n in FEW_ROWS}
    assert "q4_0" in choice.measured[0]


def test_ggmls_kernel_takes_part_only_where_a_row_has_the_same_bits_in_any_batch(
    small: None, backend: Backend, file: ModelFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a kernel that doubles the results of two rows and more, and one that does not."""
    weighed = kinds_of([info("f16", 512, 1024)])
    multiply = kernel_samples.mul_mat
    monkeypatch.setattr(kernel_samples, "mul_mat", lambda a, b: multiply(a, b) + multiply(a, b) if b.dim(1) > 1
                        else multiply(a, b))  # fmt: skip
    base = KernelChoice({"f16": Borders(1, 4)})
    monkeypatch.setattr(kernel_measure._Contest, "_sample", lambda contest, name: 1.0)
    changed = measure(backend, [file.mapping()], weighed, LONG, base=base)
    assert GGML not in changed[FewRows("f16", 1, False)]
    monkeypatch.setattr(kernel_samples, "mul_mat", lambda a, b: mul_mat_small_batch(a, b, "scalar"))
    assert GGML in measure(backend, [file.mapping()], weighed, LONG, base=base)[FewRows("f16", 1, False)]
    everywhere = KernelChoice({"f16": Borders(1, ALL)})
    timings = measure(backend, [file.mapping()], weighed, LONG, base=everywhere)
    assert GGML not in timings[FewRows("f16", 1, False)], "it could not be chosen"


@pytest.mark.parametrize("rest", [1.0, 2.0, 0.5], ids=["steady", "slower", "quicker"])
def test_memory_that_changes_its_speed_decides_nothing(
    small: None, backend: Backend, file: ModelFile, monkeypatch: pytest.MonkeyPatch, rest: float
) -> None:
    """Equal kernels: what is read first takes 5 times as long, one sample a fifth, and each turn `rest` times."""
    weighed = {Kind("q4_0", experts=False): [info("q4_0", 256, 1024)]}
    circle, taken = 2, 0  # samples of all weights: 4 parts of 224 rows

    def sample(contest: kernel_measure._Contest, name: str) -> float:
        nonlocal taken
        taken += 1
        turn = len(contest.turns)
        lucky = name == "burst" and turn == 1
        return 5.0 if taken <= circle else rest**turn * (0.2 if lucky else 1.0)

    monkeypatch.setattr(kernel_measure._Contest, "_sample", sample)
    found = measure(backend, [file.mapping()], weighed, LONG)
    assert found
    for times in found.values():
        assert len(set(times.values())) == 1


def test_a_slow_kernel_is_not_chosen_for_the_turn_in_which_the_start_was_disturbed(
    small: None, backend: Backend, file: ModelFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It drops out after that turn, so no later one shows how slow it is."""
    start = KernelChoice({"q4_0": Borders(1, ALL)}).variant("q4_0", 1)

    def sample(contest: kernel_measure._Contest, name: str) -> float:
        disturbed = name == start and len(contest.turns) == 0
        return 4.0 if disturbed else 2.5 if name == "none" else 1.0

    monkeypatch.setattr(kernel_measure._Contest, "_sample", sample)
    base = KernelChoice({"q4_0": Borders(1, ALL)})
    timings = measure(
        backend, [file.mapping()], {Kind("q4_0", experts=False): [info("q4_0", 256, 1024)]}, LONG, base=base
    )
    choice = decide(base, timings)
    assert [choice.variant("q4_0", n) for n in FEW_ROWS] == [start] * len(FEW_ROWS)


def test_in_a_table_of_everything_one_disturbed_turn_does_not_count(
    small: None, backend: Backend, file: ModelFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the first two turns another program takes the CPU from each kernel in its turn."""
    weighed = {Kind("q4_0", experts=False): [info("q4_0", 256, 1024)]}

    def sample(contest: kernel_measure._Contest, name: str) -> float:
        return 100.0 if len(contest.turns) == contest.sides.index(name) % 3 else 2.0 if name == "l2" else 1.0

    monkeypatch.setattr(kernel_measure._Contest, "_sample", sample)
    found = measure(backend, [file.mapping()], weighed, LONG, (1, 16), everything=True)
    assert {few.rows for few in found} == {1, 16}
    for times in found.values():
        assert {PLAIN_READ, GGML, "spread", "l2"} <= set(times)
        assert times == {name: 2.0 if name == "l2" else 1.0 for name in times}


def test_without_time_nothing_is_measured(small: None, backend: Backend, file: ModelFile) -> None:
    assert measure(backend, [file.mapping()], kinds_of([info("q4_0", 1024, 912)]), 0.0) == {}


def test_the_cpu_has_a_name_and_a_cache(tmp_path: Path) -> None:
    assert cpu_identity()
    text = tmp_path / "cpuinfo"
    first = "processor\t: 0\nvendor_id\t: X\ncpu family\t: 25\nmodel\t\t: 17\nmodel name\t: A CPU\nstepping\t: 1\n"
    text.write_text(first + "\nprocessor\t: 1\nmodel name\t: Another\n")
    assert cpu_identity(text) == "A CPU, family 25, model 17, stepping 1"
    assert cpu_identity(tmp_path / "none")
    for name, size in (("index0", "48K"), ("index3", "32M")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "size").write_text(f"{size}\n")
    assert last_level_cache(tmp_path) == 32 << 20
    assert last_level_cache(tmp_path / "none") == 0
