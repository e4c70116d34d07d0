"""Mistakes of other engines with Llama 4, present or past: a test named after each trap."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ollama_engine import Engine, nn
from ollama_engine.convert import convert_model
from ollama_engine.input import Input, MediaItem
from ollama_engine.ml.graph.context import Context
from ollama_engine.models.llama4.model import Llama4
from tests.models import families
from tests.models.cases import difference
from tests.models.vision import harness

Weights = dict[str, NDArray[np.float32]]
FAMILY = families.case("llama4")
SCOUT = families.case("llama4-scout")
IMAGES = next(case for case in harness.cases() if case.name == "llama4")

ROTATED, STILL = 0, 3
"""A layer with positions, and one without."""


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(tmp_path_factory.mktemp("llama4"))


def changed(folder: Path, change: Callable[[str, NDArray[np.float32]], NDArray[np.float32]]) -> NDArray[np.float32]:
    """Logits of the family's prompt with other weights: `change(name, values)` of each."""
    golden = families.load(FAMILY)
    weights = {name: change(name, values) for name, values in FAMILY.weights(golden.shapes).items()}
    convert_model(families.write_folder(folder / "source", golden.config, weights, "F32"), folder / "m.gguf", "f32")
    with FAMILY.engine(folder / "m.gguf") as engine:
        return engine.logits(FAMILY.prompt)


def model_of(engine: Engine) -> Llama4:
    model: Any = engine._loaded.model
    assert isinstance(model, Llama4)
    return model


def test_the_factors_of_the_rotation_are_read_under_their_global_name(folder: Path) -> None:
    """Ollama's engine looked for `blk.i.rope_factors`, which no file has, so that Scout's were ignored."""
    with SCOUT.engine(families.converted(SCOUT, folder)) as engine:
        factors = model_of(engine).rope_freqs
        assert factors.name == "rope_freqs"
        assert sorted(set(factors.tensor.numpy().tolist())) == [1.0, 8.0], "limits are equal: a step"
        assert not model_of(engine).unused_weights


def test_norms_do_not_subtract_the_mean(folder: Path) -> None:
    """Ollama's engine declared them as LayerNorm."""
    with FAMILY.engine(families.converted(FAMILY, folder)) as engine:
        model = model_of(engine)
        norms = [model.output_norm, *(norm for layer in model.layers for norm in (layer.attn_norm, layer.ffn_norm))]
        assert all(type(norm) is nn.RMSNorm for norm in norms)


@pytest.mark.parametrize(("layer", "same"), [(ROTATED, True), (STILL, False)])
def test_only_layers_with_positions_normalize_queries_and_keys(layer: int, same: bool, folder: Path) -> None:
    """Ollama's engine normalizes those of all. Keys that are twice as long are the same after a norm only."""
    name = f"layers.{layer}.self_attn.k_proj.weight"
    plain = changed(folder / "plain", lambda _, values: values)
    longer = changed(folder / "longer", lambda name_of, values: 2 * values if name_of.endswith(name) else values)
    assert (difference(longer, plain) < 1e-3) is same


def test_a_context_shift_does_not_rotate_keys_without_positions(folder: Path) -> None:
    """Ollama's engine rotates them, too."""
    with FAMILY.engine(families.converted(FAMILY, folder)) as engine, Context(engine._loaded.backend) as ctx:
        model = model_of(engine)
        values = np.random.default_rng(0).standard_normal((3, 2, 32)).astype(np.float32)
        keys, deltas = ctx.from_floats(values, (32, 2, 3)), ctx.from_ints([-5] * 3)
        still, rotated = (model.shift_keys(layer, keys, deltas) for layer in (STILL, ROTATED))
        assert still is keys
        ctx.forward(rotated)
        ctx.alloc()
        ctx.compute()
        assert np.abs(rotated.numpy() - values).max() > 0.1


def test_answers_go_on_after_a_context_shift(folder: Path) -> None:
    """Chunks begin elsewhere in a shifted text; nothing that a later token sees may be missing."""
    with FAMILY.engine(families.converted(FAMILY, folder), num_ctx=96) as engine:
        params = families.SamplingParams(temperature=0, max_tokens=150, logit_bias=families.BANNED)
        answer = engine.generate(FAMILY.prompt[:60], params, on_overflow="shift")
        assert len(answer.tokens) == 150


def test_an_image_ends_with_the_token_of_its_end(folder: Path) -> None:
    """Ollama's engine writes the one of its beginning again."""
    with harness.engine(harness.converted(IMAGES, folder)) as engine:
        multimodal = model_of(engine).multimodal
        assert multimodal is not None
        item = MediaItem(hash=1, n_inputs=3 * 4, embeddings=lambda: np.zeros((12, 64), np.float32), grid=(1, 2))
        written = multimodal.post_tokenize([Input(5), Input(-1, item), Input(6)])
    begin, end, patch, between, row_end, whole = range(harness.N_TEXT, harness.N_TEXT + 6)
    tile = [patch] * 4
    expected = [5, begin, *tile, between, *tile, row_end, whole, *tile, end, 6]
    assert [given.token for given in written] == expected
    parts = [given.media for given in written if given.media is not None]
    assert [part.n_inputs for part in parts] == [4, 4, 4]
    assert len({part.hash for part in parts} | {item.hash}) == 4


def test_a_tile_needs_no_batch_of_its_own(folder: Path) -> None:
    """Embeddings attend to what is before them only, so none has to share a batch; they are computed once."""
    picture = next(part for part in IMAGES.prompts["one"] if not isinstance(part, str))
    with harness.engine(harness.converted(IMAGES, folder), batch_size=3) as engine:
        multimodal = model_of(engine).multimodal
        assert multimodal is not None
        prepared = multimodal.preprocess(picture.draw())
        assert prepared.n_inputs > 3 * engine._loaded.config.batch_size
        item = MediaItem(1, prepared.n_inputs, lambda: np.zeros((0, 64), np.float32), grid=prepared.grid)
        assert not any(given.same_batch for given in multimodal.post_tokenize([Input(-1, item)]))
        assert multimodal.traits.largest_group == 0
