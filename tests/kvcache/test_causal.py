"""The causal cache on a real backend: what goes in comes out, for every type and layout, and nothing else does."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

from ollama_engine.errors import ConfigError, ContextOverflowError, NoMemoryError
from ollama_engine.input import Batch
from ollama_engine.kvcache import CacheConfig, CausalCache, LayerShape
from ollama_engine.ml.device.placement import BackendParams
from ollama_engine.ml.graph.backend import Backend
from ollama_engine.ml.ops.paged import paged_attention_chosen
from tests.kvcache.attending import Attending, attending
from tests.kvcache.drawing import draw, last_position, table
from tests.support.suite import slow_except

TOLERANCE = {"f32": 1e-5, "f16": 1e-2, "bf16": 2e-2, "q8_0": 5e-2, "q5_1": 0.3, "q5_0": 0.3, "q4_1": 0.5, "iq4_nl": 0.5,
             "q4_0": 0.5}  # fmt: skip
"""The error of an average of normal numbers whose keys and values are rounded to the type."""

LAYOUTS = [(dtype, True) for dtype in TOLERANCE] + [(dtype, False) for dtype in ("f32", "f16", "bf16")]
GATHERED: dict[str, Any] = {"paged": False, "gathered_rows": 1}
"""As graphs of more rows."""
MASKED: dict[str, Any] = {"paged": False, "gathered_rows": None}
"""As on other devices."""
WAYS: dict[str, dict[str, Any]] = {"indices": {}, "gathered": GATHERED, "masks": MASKED}


@pytest.fixture(autouse=True, params=WAYS)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How rows get to what they see."""
    monkeypatch.setattr("tests.kvcache.attending.CacheConfig", functools.partial(CacheConfig, **WAYS[request.param]))
    return str(request.param)


both_layouts = pytest.mark.parametrize("flash", [True, False], ids=["flash", "permuted"])


@pytest.mark.parametrize(("dtype", "flash"), LAYOUTS)
def test_attention_over_what_was_stored(dtype: Any, flash: bool) -> None:
    """A prompt, tokens one by one, a second sequence in between, and both in one batch."""
    steps = [([0] * 9, range(9)), ([0], [9]), ([3] * 40, range(40)), ([0, 3, 3], [10, 40, 41]), ([3], [42])]
    with attending(80, dtype=dtype, flash_attention=flash) as a:
        for sequences, positions in steps:
            found, expected = a.run(sequences, list(positions)), a.expected(sequences, list(positions))
            assert np.abs(found - expected).max() <= TOLERANCE[dtype]
            a.cache.cells.check()


@pytest.mark.parametrize(("dtype", "flash"), LAYOUTS)
def test_attention_reads_from_the_lowest_cell_of_its_sequences(dtype: Any, flash: bool) -> None:
    with attending(160, dtype=dtype, flash_attention=flash, **MASKED) as a:
        a.run([0] * 70, range(70))
        for positions in (range(20), range(20, 50), [50]):
            found, expected = a.run([1] * len(positions), positions), a.expected([1] * len(positions), positions)
            assert np.abs(found - expected).max() <= TOLERANCE[dtype]
            assert a.cache.shape_key[1] == 64
        both = a.run([1, 0], [51, 70])
        assert np.abs(both - a.expected([1, 0], [51, 70])).max() <= TOLERANCE[dtype]
        assert a.cache.shape_key == (2, 0, 128)


def test_kept_histories_of_others_cost_nothing() -> None:
    with attending(256, **MASKED) as a:
        for sequence in range(3):
            a.cache.begin(Batch.of([0] * 64, 0, sequence))
            assert a.cache.shape_key == (64, 64 * sequence, 64 * (sequence + 1))


def test_a_sequence_that_was_dropped_whole_begins_again() -> None:
    """A chunk's cells are dropped at its end; where the sequence goes on must not outlive a new beginning."""
    with attending(64, chunk=6) as a:
        a.run([0] * 6, range(6))
        a.run([1], [0])
        assert last_position(a.cache.cells, 0) == -1
        a.run([0] * 2, range(2))
        a.cache.check()
        a.run([1], [1])
        assert a.cache.can_resume(0, 2)
        found = a.run([0] * 2, [2, 3])
        assert np.abs(found - a.expected([0] * 2, [2, 3])).max() <= 1e-5
        a.cache.check()


@both_layouts
def test_freed_cells_are_used_again(flash: bool) -> None:
    with attending(32, flash_attention=flash) as a:
        for sequence in range(5):
            a.run([sequence] * 32, range(32))
            a.cache.remove(sequence)
        a.run([0] * 16, range(16))
        a.run([1] * 16, range(16))
        a.cache.remove(0)
        found = a.run([1] * 8, range(16, 24))
        assert np.abs(found - a.expected([1] * 8, range(16, 24))).max() <= 1e-5


@both_layouts
def test_a_truncated_sequence_goes_on_from_there(flash: bool) -> None:
    with attending(64, flash_attention=flash) as a:
        a.run([0] * 20, range(20))
        a.cache.remove(0, 12)
        assert np.abs(a.run([0], [12]) - a.expected([0], [12])).max() <= 1e-5


@both_layouts
@pytest.mark.parametrize("batch", [1, 3, 8, 20])
def test_a_window_drops_what_no_row_can_see(flash: bool, batch: int) -> None:
    window, length = 6, 60
    with attending(window + batch, padding=2, window=window, flash_attention=flash) as a:
        for begin in range(0, length, batch):
            positions = range(begin, min(begin + batch, length))
            found = a.run([0] * len(positions), positions)
            assert np.abs(found - a.expected([0] * len(positions), positions)).max() <= 1e-5
            assert a.cache.usage.used <= window + batch - 1
            a.cache.cells.check()


def test_a_window_of_one_sequence_leaves_the_others_alone() -> None:
    with attending(64, window=4) as a:
        a.run([0] * 10, range(10))
        a.run([1] * 4, range(4))
        a.run([0, 1], [10, 4])
        assert last_position(a.cache.cells, 1) == 4
        found = a.run([1, 0], [5, 11])
        assert np.abs(found - a.expected([1, 0], [5, 11])).max() <= 1e-5


@pytest.mark.parametrize("window", [None, 4])
def test_overflow_changes_nothing(window: int | None) -> None:
    with attending(32, window=window) as a:
        drawn = " ".join([f"a{i}" for i in range(14)] + [f"b{i}" for i in range(10)] + ["."] * 8)
        a.cache.cells = table(drawn, window=window)
        before = draw(a.cache.cells)
        # With a window, 11 cells of a are out of sight at position 14, and 7 of b at 10: 8 + 18 would be free.
        n = 9 if window is None else 27
        with pytest.raises(ContextOverflowError, match=f"{n} tokens do not fit: {n - 1} of 32"):
            a.cache.begin(Batch.of([0] * n, 14))
        assert draw(a.cache.cells) == before
        a.cache.begin(Batch.of([0] * (n - 1), 14))
        a.cache.cells.check()


@pytest.mark.parametrize("bad", slow_except([np.nan, np.inf, -np.inf, 1e30], np.nan, -np.inf))
@pytest.mark.parametrize(("dtype", "flash"), LAYOUTS)
def test_nonsense_does_not_leak_from_scrubbed_cells(dtype: Any, flash: bool, bad: float) -> None:
    """A mask cannot hide it: minus infinity plus NaN is NaN, and so is 0 times infinity."""
    with attending(96, dtype=dtype, flash_attention=flash) as a:
        a.run([1] * 9, range(9))
        a.run([0] * 70, range(70), spoil=bad)
        a.cache.remove(0)
        a.cache.scrub()
        for sequences, positions in (([1], [9]), ([0] * 3, range(3)), ([1] * 70, range(10, 80))):
            found, expected = a.run(sequences, list(positions)), a.expected(sequences, list(positions))
            assert np.abs(found - expected).max() <= TOLERANCE[dtype]


def test_graph_shape_changes_only_with_tokens_and_the_run_that_is_read() -> None:
    with attending(128, padding=32, **MASKED) as a:
        a.cache.begin(Batch.of([0] * 30, 0))
        keys = []
        for position in range(30, 66):
            a.cache.begin(Batch.of([0], position))
            keys.append(a.cache.shape_key)
        # What the prompt read serves for two tokens; then a row that decodes has room for 64 steps.
        assert keys == [(1, 0, 32)] * 2 + [(1, 0, 64)] * 32 + [(1, 0, 128)] * 2
        assert keys_of_worst_cases(a, 7) == [(7, 0, 128)]


def keys_of_worst_cases(a: Attending, n_tokens: int) -> list[tuple[int, ...]]:
    return [a.cache.shape_key for _ in a.cache.worst_cases(n_tokens)]


def test_room_for_what_few_rows_read_doubles(way: str) -> None:
    with attending(5000, dtype="f16") as a:
        a.cache.begin(Batch.of([0] * 1000, 0))
        keys = []
        for position in range(1000, 2100):
            a.cache.begin(Batch.of([0], position))
            keys.append(a.cache.shape_key)
        few, many = keys_of_worst_cases(a, 7), keys_of_worst_cases(a, 65)
        if way == "indices" and paged_attention_chosen("f16"):
            assert keys == [(1, 1024)] * 24 + [(1, 2048)] * 1024 + [(1, 4096)] * 52
            assert few == [(7, 7 * 5024)]
            assert many == [(65, 64 * 5024)]
        elif way == "gathered":
            assert keys == [(1, 1024)] * 24 + [(1, 1024 + 64 * (i // 64 + 1)) for i in range(1076)]
            assert few == [(7, 0, 5024), (7, 2528)]
        elif way == "masks":
            assert {len(key) for key in keys} == {3}
            assert few == [(7, 0, 5024)]
            assert many == [(65, 0, 5024)]


def test_prompts_gather_what_they_read_up_to_half_the_cells() -> None:
    with attending(256, **GATHERED) as a:
        for sequence in range(3):
            a.cache.begin(Batch.of([0] * 64, 0, sequence))
            assert a.cache.shape_key == (64, 64)
        output = a.run([0] * 9 + [1] * 9, [*range(64, 73), *range(64, 73)])
        assert a.cache.shape_key == (18, 0, 224)  # more than half
        a.cache.remove(0)
        a.cache.remove(1)
        for sequence in range(2):  # cells by turns
            a.run([0, 1] * 20, np.repeat(np.arange(20 * sequence, 20 * sequence + 20), 2).tolist())
        output = a.run([1] * 9, range(40, 49))
        assert a.cache.shape_key == (9, 64)
        assert np.abs(output - a.expected([1] * 9, range(40, 49))).max() <= 1e-5


def test_rows_of_many_sequences(way: str) -> None:
    """In a tile of ggml's kernel each of them would see the cells of all."""
    with attending(2048, dtype="f16", sequences=80) as a:
        a.run([s for s in range(100) for _ in range(10)], [*range(10)] * 100)
        decoding = a.run([*range(100)], [10] * 100)
        assert np.abs(decoding - a.expected([*range(100)], [10] * 100)).max() <= TOLERANCE["f16"]
        prompt = [0] * 64 + [*range(1, 9)], [*range(11, 75)] + [11] * 8
        mixed = a.run(*prompt)
        assert np.abs(mixed - a.expected(*prompt)).max() <= TOLERANCE["f16"]
        assert (a.cache._histories._current is a.cache._histories._paged) == (
            way == "indices" and paged_attention_chosen("f16")
        )


@pytest.mark.parametrize("flash", [True, False], ids=["flash", "off"])
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_a_row_has_the_same_bits_in_any_batch(way: str, dtype: Any, flash: bool) -> None:
    """Whether a prompt is computed at once, in parts or token by token, where its cells lie, and whatever beside it."""
    if way != "indices" or not paged_attention_chosen(dtype) or not (flash or dtype in ("f32", "f16", "bf16")):
        return
    n = 330  # two pieces of a list, and bands of rows that end within a tile
    with attending(1024, dtype=dtype, flash_attention=flash) as a:
        whole = a.run([0] * n, range(n))
    for cuts in ([1, 65, 130, 329], [16, 17, 200, 328, 329], [64, 128, 192, 256, 320]):
        with attending(1024, dtype=dtype, flash_attention=flash) as a:
            for begin, end in zip([0, *cuts], [*cuts, n], strict=True):
                beside = range(begin // 2, begin // 2 + 3) if begin else range(0)
                found = a.run([5] * len(beside) + [0] * (end - begin), [*beside, *range(begin, end)])
                a.cache.remove(5)
                assert found[:, len(beside) :].tobytes() == whole[:, begin:end].tobytes(), (begin, end)


def test_the_cells_of_others_are_not_read(way: str) -> None:
    """Where nothing is masked away but a sequence's own cells, others may hold anything."""
    if way == "masks":
        return
    with attending(256, dtype="f16") as a:
        a.run([0, 1] * 30, np.repeat(np.arange(30), 2).tolist(), spoil=np.nan)
        a.cache.remove(1)
        for positions in (range(20), range(20, 90)):
            found, expected = a.run([1] * len(positions), positions), a.expected([1] * len(positions), positions)
            assert np.abs(found - expected).max() <= TOLERANCE["f16"]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"dtype": "q8_0", "flash_attention": False}, "needs flash attention"),
        ({"dtype": "q4_0", "flash_attention": False}, "needs flash attention"),
        ({"dtype": "q6_K", "flash_attention": True}, "f32, f16, bf16, q8_0, q5_1, q5_0, q4_1, iq4_nl, q4_0"),
    ],
)
def test_types_that_cannot_be_stored(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        CacheConfig(**config)


def test_blocks_must_fit_the_heads() -> None:
    config = CacheConfig(dtype="q8_0", flash_attention=True)
    with pytest.raises(ConfigError, match=r"blocks of 32.*48 and 64"):
        config.check(LayerShape(kv_heads=1, key_dim=48, value_dim=64))


def test_layers_of_different_windows_need_several_caches() -> None:
    layers = [LayerShape(kv_heads=1, key_dim=32, value_dim=32, window=w) for w in (None, 8)]
    with (
        Backend(BackendParams(threads=1, gpu_layers=0)) as backend,
        pytest.raises(ValueError, match="one window"),
    ):
        CausalCache(backend, layers, [0, 0], 32, CacheConfig(dtype="f16", flash_attention=True))


def test_more_cells_than_memory_is_refused_before_any_is_taken() -> None:
    with pytest.raises(NoMemoryError), attending(1 << 30):
        pass


def test_bytes_are_counted() -> None:
    with attending(64, dtype="f16") as a:
        assert sum(a.cache.nbytes.values()) == 2 * 64 * 2 * (32 + 64) * 2


def test_a_closed_cache_has_no_memory() -> None:
    with attending(64) as a:
        a.cache.close()
        a.cache.close()
        with pytest.raises(Exception, match="closed"):
            _use(a)


def _use(a: Attending) -> None:
    a.run([0], [0])
