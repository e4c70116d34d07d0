"""bench/products.py: how much is read and multiplied, from where, and that the fastest turn counts."""

from __future__ import annotations

import pytest

from bench import products
from bench.products import (
    LEAST,
    LEAST_TURNS,
    PLAIN_READ,
    SAMPLE_BYTES,
    Matrices,
    Product,
    by_turns,
    chosen_kernel,
    chosen_of_ggml,
    compare,
    ggml_kernels,
    matrices,
)
from ollama_engine.ml.device.placement import BackendParams
from ollama_engine.ml.graph.backend import Backend
from ollama_engine.ml.weights.kernel_choice import BY_TABLE, GGML, KernelChoice


def test_the_fastest_of_each_side_counts_and_sides_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    times = {"a": [3.0, 1.0, 2.0], "b": [4.0, 6.0, 5.0]}

    def side(name: str) -> float:
        seen.append(name)
        return times[name].pop(0)

    monkeypatch.setattr(products, "TURNS_SECONDS", 0)
    assert by_turns({name: lambda name=name: side(name) for name in times}) == {"a": 1.0, "b": 4.0}
    assert seen == ["a", "b"] * LEAST_TURNS


@pytest.mark.parametrize(
    ("cache", "free", "found"), [(32, 8192, 256), (128, 8192, 512), (512, 65536, 1024), (32, 800, 100)]
)
def test_more_than_the_cache_and_less_than_is_free(
    monkeypatch: pytest.MonkeyPatch, cache: int, free: int, found: int
) -> None:
    monkeypatch.setattr(products, "last_level_cache", lambda: cache << 20)
    monkeypatch.setattr(products, "available_bytes", lambda: free << 20)
    assert products.bytes_from_memory() == found << 20
    assert LEAST == 256 << 20


def test_a_sample_reads_more_than_a_moment_takes_and_multiplies_less_than_a_second_takes() -> None:
    row = Product("q8_0", 2048, 1024, 1)
    assert row.matrix_bytes == row.read_bytes == 2048 // 32 * 34 * 1024
    assert row.per_sample(100) * row.read_bytes >= SAMPLE_BYTES
    assert row.per_sample(2) == 2
    assert Product("q8_0", 2048, 1024, 512).per_sample(100) == 1


def test_a_token_reads_its_experts_only() -> None:
    one, many = (Product("q8_0", 2048, 768, tokens, 64, 8) for tokens in (1, 512))
    assert one.read_bytes == one.matrix_bytes // 8
    assert many.read_bytes == many.matrix_bytes
    assert many.operations == 512 * one.operations == 512 * 8 * 2 * 2048 * 768


def test_matrices_are_taken_in_a_circle() -> None:
    found = Matrices([None] * 3, [])  # type: ignore[list-item]
    assert [list(found.take(2)) for _ in range(3)] == [[0, 1], [2, 0], [1, 2]]


@pytest.mark.parametrize("chosen", [BY_TABLE, GGML])
@pytest.mark.parametrize("n_expert", [0, 4])
def test_what_the_engine_chooses_is_told_by_its_graph(chosen: KernelChoice, n_expert: int) -> None:
    of = Product("q4_0", 256, 64, 3, n_expert, 2)
    ours = bool(chosen.rows_per_expert("q4_0") if n_expert else 3 in chosen.rows("q4_0", 256))
    with (
        Backend(BackendParams(threads=1), max_nodes=256, kernels=chosen) as backend,
        matrices(backend, of, 0) as found,
    ):
        assert chosen_of_ggml(backend, of, found) == (None if ours else "repacked" if found.copies else "ggml")
        sides = {"ours": chosen_kernel(of)} | ggml_kernels(of, found)
        assert all(seconds > 0 for seconds in compare(backend, of, found, sides).values())


@pytest.mark.parametrize("n_expert", [0, 4])
def test_a_plain_read_is_a_side_like_others(n_expert: int) -> None:
    of = Product("q4_0", 256, 64, 3, n_expert, 2)
    with Backend(BackendParams(threads=1), max_nodes=256) as backend, matrices(backend, of, 0) as found:
        times = compare(backend, of, found, {"read": PLAIN_READ, "ours": chosen_kernel(of)})
    assert min(times.values()) > 0
