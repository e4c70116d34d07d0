"""Who sees whom where nothing is stored, drawn as in test_masks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest

from ollama_engine.errors import NoMemoryError
from ollama_engine.input import Batch
from ollama_engine.kvcache import CompositeStepCache, LayerShape, Visibility, make_null_cache
from ollama_engine.kvcache.no_images import NoImages
from ollama_engine.kvcache.null import NullCache, mask_of, masks_of, part_of
from ollama_engine.kvcache.null_paged import PagedNullCache, indices_of


class Case(NamedTuple):
    name: str
    rows: str
    """Sequence and position of each."""
    mask: str
    window: int | None = None
    causal: Visibility | None = None

    @property
    def batch(self) -> Batch:
        places = [(ord(row[0]) - ord("a"), int(row[1:])) for row in self.rows.split()]
        sequences, positions = (np.array(values, np.int32) for values in zip(*places, strict=True))
        return Batch(np.zeros_like(positions), positions, sequences, outputs=positions[:0])


CASES = [
    Case("a text sees all of itself", "a0 a1 a2", "000/000/000"),
    Case("two texts", "a0 a1 b0", "00x/00x/xx0"),
    Case("two texts, mixed", "a0 b0 a1 b1", "0x0x/x0x0/0x0x/x0x0"),
    Case("window of 2: one on either side", "a0 a1 a2 a3", "00xx/000x/x000/xx00", window=2),
    Case("window of 3: as of 2", "a0 a1 a2 a3", "00xx/000x/x000/xx00", window=3),
    Case("window of 1: itself", "a0 a1", "0x/x0", window=1),
    Case("window of two texts", "a0 a1 a2 b0 b1", "00xxx/000xx/x00xx/xxx00/xxx00", window=2),
    Case("causal", "a0 a1 a2", "0xx/00x/000", causal=Visibility()),
    Case("causal, two texts", "a0 a1 b0 b1", "0xxx/00xx/xx0x/xx00", causal=Visibility()),
    Case("causal window of 2", "a0 a1 a2", "0xx/00x/x00", causal=Visibility(window=2)),
    Case("causal chunks of 2", "a0 a1 a2 a3", "0xxx/00xx/xx0x/xx00", causal=Visibility(chunk=2)),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_masks(case: Case) -> None:
    mask = mask_of(case.batch, case.window, case.causal)
    assert mask.dtype == np.float16
    assert drawn(mask) == case.mask


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_indices_are_what_masks_show(case: Case) -> None:
    """Each row's are in the order of positions, and its phase is the position of the first."""
    batch = case.batch
    indices, ranges, phases = indices_of(batch, case.window, case.causal)
    assert {array.dtype for array in (indices, ranges, phases)} == {np.dtype(np.int32)}
    seen = np.full((len(batch), len(batch)), -np.inf)
    for row, (begin, end) in enumerate(ranges.tolist()):
        cells = indices[begin:end]
        seen[row, cells] = 0
        assert np.array_equal(batch.positions[cells], phases[row] + np.arange(end - begin))
    assert drawn(seen) == case.mask


def drawn(mask: np.typing.NDArray[Any]) -> str:
    return "/".join("".join({0: "0", -np.inf: "x"}[bias] for bias in row) for row in mask.tolist())


def test_a_batch_that_no_machine_computes_is_refused() -> None:
    layers = [LayerShape(kv_heads=1, key_dim=8, value_dim=8)]
    cache = make_null_cache(layers, flash_attention=True, causal=True, paged=True)
    with pytest.raises(NoMemoryError, match="1048577 tokens are to be in one batch"):
        next(cache.worst_cases((1 << 20) + 1))


def test_layers_of_one_kind_share_a_cache() -> None:
    def layer(**options: Any) -> LayerShape:
        return LayerShape(kv_heads=1, key_dim=8, value_dim=8, **options)

    assert isinstance(make_null_cache([layer(), layer()], flash_attention=True, causal=False), NullCache)
    mixed = make_null_cache([layer(), layer(window=4), layer()], flash_attention=True, causal=True, paged=True)
    assert isinstance(mixed, CompositeStepCache)
    assert [type(cache) for cache in mixed.caches] == [PagedNullCache] * 2


def test_layers_that_attend_to_images_are_skipped() -> None:
    """Texts to embed have none."""
    layers = [LayerShape(kv_heads=1, key_dim=8, value_dim=8, image_rows=rows) for rows in (None, 3)]
    mixed = make_null_cache(layers, flash_attention=True, causal=True)
    assert isinstance(mixed, CompositeStepCache)
    mixed.set_layer(1)
    cache = mixed.current
    assert isinstance(cache, NoImages)
    assert (cache.sees_images, cache.shape_key, list(cache.worst_cases(4))) == (False, (), [None])
    for ask in (cache.get, lambda: cache.gate):
        with pytest.raises(ValueError, match="skip the layer"):
            ask()
    with pytest.raises(ValueError, match="no image comes"):
        cache.put(None, None)  # type: ignore[arg-type]
    batch = Batch.of([1, 2], 0)
    cache.begin(batch)
    with pytest.raises(ValueError, match="need a cache"):
        cache.begin(replace(batch, images=np.array([0], np.int32)))


@pytest.mark.parametrize(
    ("lengths", "part"),
    [([64, 64], 64), ([16] * 8, 64), ([40, 24, 64], 64), ([40, 40, 48], 128), ([100, 28, 128], 128), ([60] * 4, 240),
     ([64], 64), ([200, 56, 256], 256), ([300], 300)],
)  # fmt: skip
def test_parts_that_see_nothing_of_each_other(lengths: list[int], part: int) -> None:
    batch = texts_of(lengths)
    assert part_of(batch) == part
    for window, causal in ((None, None), (6, None), (None, Visibility()), (None, Visibility(window=5))):
        whole, parts = mask_of(batch, window, causal), masks_of(batch, part, window, causal)
        assert parts.shape == (len(batch) // part, 1, part, part)
        for i, mask in enumerate(parts[:, 0]):
            here = slice(i * part, (i + 1) * part)
            np.testing.assert_array_equal(mask, whole[here, here])
            whole[here, here] = -np.inf
        assert not (whole == 0).any()


def test_texts_whose_rows_are_apart_are_one_part() -> None:
    batch = texts_of([64, 64])
    batch.sequences[[0, -1]] = batch.sequences[[-1, 0]]
    assert part_of(batch) == 128


def texts_of(lengths: list[int]) -> Batch:
    positions = np.concatenate([np.arange(n, dtype=np.int32) for n in lengths])
    sequences = np.repeat(np.arange(len(lengths), dtype=np.int32), lengths)
    return Batch(np.zeros_like(positions), positions, sequences, positions[:0])
