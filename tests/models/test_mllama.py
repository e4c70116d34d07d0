"""Llama 3.2 Vision: mistakes that others made, each by itself. test_vision compares with what transformers computes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from ollama_engine import Engine, SamplingParams
from ollama_engine.convert import convert_model
from ollama_engine.errors import ImageError, ModelFormatError
from ollama_engine.input import Batch, FloatArray, Input, MediaItem
from ollama_engine.ml import ops
from ollama_engine.ml.gguf.gguf_file import GGUFFile
from ollama_engine.ml.gguf.metadata import Metadata
from ollama_engine.ml.graph.context import Context
from ollama_engine.ml.graph.tensor import Tensor
from ollama_engine.models import known_values
from ollama_engine.models.mllama import text
from ollama_engine.models.mllama.model import Mllama, MllamaImages
from ollama_engine.models.mllama.options import read_text, read_vision, tile_grids
from ollama_engine.models.mllama.preprocess import choose_grid, fitted_size
from ollama_engine.runner.core.input_processor import prompt_inputs
from tests.models.cases import difference
from tests.models.vision import harness
from tests.models.vision.pictures import Picture

pytest.importorskip("PIL", reason="Pillow is not installed")

CASE = next(case for case in harness.cases() if case.name == "mllama")
TILE = 56
CAT, DOG = Picture(50, 40, 1), Picture(100, 30, 2)
FEW = SamplingParams(temperature=0, max_tokens=4, logit_bias=CASE.banned)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return harness.converted(CASE, Path(tmp_path_factory.mktemp("mllama")))


@pytest.fixture(scope="module")
def engine(path: Path) -> Iterator[Engine]:
    with harness.engine(path, parallel=2, num_ctx=128) as engine:
        yield engine


@pytest.fixture
def model(engine: Engine) -> Mllama:
    found: Any = engine._loaded.model
    assert isinstance(found, Mllama)
    return found


@pytest.fixture
def images(model: Mllama) -> MllamaImages:
    assert model.multimodal is not None
    return model.multimodal


def prompt(*parts: str | Picture) -> list[Any]:
    return CASE.segments(parts)


def computed(engine: Engine, build: Callable[[Context], Tensor]) -> FloatArray:
    with Context(engine._loaded.backend) as ctx:
        out = build(ctx)
        ctx.forward(out)
        ctx.alloc()
        ctx.compute()
        return out.numpy().astype(np.float32)


def numbers(*shape: int, seed: int = 1) -> FloatArray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


# -- batches -----------------------------------------------------------------------------------------------------------


def test_two_images_side_by_side_share_a_batch(engine: Engine) -> None:
    """And a third beside them comes in the next one; the answer is that of one input at a time."""
    executor, together = engine._core.executor, []
    prepare = executor.prepare

    def prepared(batch: Batch, needed: Sequence[int] = ()) -> None:
        prepare(batch, needed)
        together.extend([len(batch.media)] if batch.media else [])

    given = prompt(CAT, DOG, Picture(30, 90, 3), "what is that?")
    with patch.object(executor, "prepare", prepared):
        found = engine.generate(given, FEW, cache=False)
        assert together == [2, 1]
        with patch.object(executor, "batch_size", 1):
            assert engine.generate(given, FEW, cache=False).tokens == found.tokens
        assert together == [2, 1, 1, 1, 1]
    assert engine.metrics.encoded_images == 3


@pytest.mark.parametrize("n", [3, 4])
def test_text_that_sees_a_long_run_leaves_few_slots_to_new_images(path: Path, n: int) -> None:
    """Trap: text and the images behind it in one batch. There are four slots, and the text sees three or four."""
    run = [Picture(20 + number, 30, number) for number in range(n)]
    with harness.engine(path, parallel=1, num_ctx=128, batch_size=8) as engine:
        found = engine.generate(prompt(*run, "and then these:", CAT, DOG, "?"), FEW)
        assert len(found.tokens) == 4


# -- pictures ----------------------------------------------------------------------------------------------------------


def test_aspect_ratios_count_rows_before_columns(images: MllamaImages) -> None:
    """A picture two tiles wide is (1, 2), whose embeddings are row 2; Ollama's engine took row 5, that of (2, 1)."""
    grids = [(1, 1), (1, 2), (1, 3), (1, 4), (2, 1), (2, 2), (3, 1), (4, 1)]
    assert tile_grids(4) == grids
    for number, (rows, columns) in enumerate(grids, 1):
        found = images.preprocess(Picture(columns * TILE, rows * TILE).draw())
        assert (found.grid, found.arrays["ratio"].tolist()) == ((rows, columns), [number])


def test_a_picture_of_exactly_a_canvas_is_not_shrunk() -> None:
    """A scale of 1 counts as growing; Ollama's engine took it for shrinking, and took a larger canvas."""
    assert choose_grid(2 * TILE, TILE, TILE, 4) == (1, 2)
    assert choose_grid(TILE, TILE, TILE, 4) == (1, 1)
    assert choose_grid(TILE + 1, TILE, TILE, 4) == (1, 2)


def test_a_small_picture_grows_to_a_tile_and_no_further() -> None:
    assert fitted_size(10, 5, (1, 1), TILE) == (TILE, TILE // 2)
    assert fitted_size(100, 30, (1, 2), TILE) == (100, 30)
    assert fitted_size(10000, 10, (1, 4), TILE) == (4 * TILE, 1)
    assert fitted_size(1, 1000, (4, 1), TILE) == (1, 4 * TILE)


def test_the_largest_image_has_all_tiles(images: MllamaImages) -> None:
    found = images.largest_image()
    assert found.n_rows == images.vision.options.image_rows == 4 * 17
    assert found.arrays["patches"].shape == (4 * 16, 3 * 14 * 14)


# -- the vision tower --------------------------------------------------------------------------------------------------


def test_gates_of_the_tower_are_stored_as_their_tanh(engine: Engine, images: MllamaImages) -> None:
    """And the gate of places as 1 - tanh: nothing is left to do but multiply."""
    weights = CASE.weights(harness.load(CASE).shapes)

    def stored(name: str) -> float:
        return float(np.tanh(weights[f"vision_model.{name}"][0]))

    vision = images.vision
    for i, layer in enumerate(vision.global_layers):
        assert layer.attn_gate.value == pytest.approx(stored(f"global_transformer.layers.{i}.gate_attn"), rel=1e-6)
        assert layer.ffn_gate.value == pytest.approx(stored(f"global_transformer.layers.{i}.gate_ffn"), rel=1e-6)
    place = stored("gated_positional_embedding.gate")
    assert vision.places.gate.value == pytest.approx(1 - place, rel=1e-6)
    assert vision.tile_places.gate.value == pytest.approx(place, rel=1e-6)
    assert vision.pre_tile.gate.value == pytest.approx(stored("pre_tile_positional_embedding.gate"), rel=1e-6)
    assert vision.post_tile.gate.value == pytest.approx(stored("post_tile_positional_embedding.gate"), rel=1e-6)


def test_a_gate_multiplies_a_branch_and_not_the_residual(
    engine: Engine, images: MllamaImages, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With closed gates a layer changes nothing. Ollama's engine once multiplied after it had added."""
    layer, o = images.vision.global_layers[0], images.vision.options
    x = numbers(11, o.n_embd)

    def out(attention: float, feed_forward: float) -> FloatArray:
        monkeypatch.setattr(layer.attn_gate, "value", attention)
        monkeypatch.setattr(layer.ffn_gate, "value", feed_forward)
        return computed(engine, lambda ctx: layer.forward(ctx.from_floats(x), 9, o))

    np.testing.assert_array_equal(out(0, 0), x)
    np.testing.assert_allclose(out(0, 2) - x, 2 * (out(0, 1) - x), atol=1e-5)
    np.testing.assert_allclose(out(2, 0) - x, 2 * (out(1, 0) - x), atol=1e-5)


def test_padding_sees_no_padding(engine: Engine, images: MllamaImages) -> None:
    """Rows with pixels see all rows, padding only those with pixels."""
    layer, o = images.vision.local_layers[0], images.vision.options
    x = numbers(12, o.n_embd)
    changed = x.copy()
    changed[-1] = numbers(o.n_embd, seed=2)
    before, after = (computed(engine, lambda ctx, x=x: layer.forward(ctx.from_floats(x), 8, o)) for x in (x, changed))
    differs = np.abs(after - before).max(axis=1) > 1e-4
    assert differs.tolist() == [True] * 8 + [False] * 3 + [True]


class Adds:
    """Stands for a local layer."""

    def forward(self, x: Tensor, n_seen: int, o: Any) -> Tensor:
        return ops.scale(x, 1.0, 1.0)


def test_kept_states_are_those_before_their_layers_and_their_number_changes_fastest(
    engine: Engine, images: MllamaImages, monkeypatch: pytest.MonkeyPatch
) -> None:
    """transformers 5 keeps those behind the layers; published weights were trained with those before."""
    vision, o = images.vision, images.vision.options
    monkeypatch.setattr(vision, "local_layers", [Adds()] * o.n_layer)
    monkeypatch.setattr(vision, "global_layers", [])
    monkeypatch.setattr("ollama_engine.models.mllama.vision.wide_product", lambda weight, x, bias: x)
    found = computed(engine, lambda ctx: vision.forward(ctx, images.preprocess(CAT.draw())))
    kept = found[:, o.n_embd :].reshape(17, o.n_embd, len(o.kept_layers))
    assert o.kept_layers == (1, 3, 2)
    np.testing.assert_allclose(kept[:, :, 1] - kept[:, :, 0], 2, atol=1e-5)
    np.testing.assert_allclose(kept[:, :, 2] - kept[:, :, 0], 1, atol=1e-5)
    # The norm before the first layer has weights near 1 and biases near 0, so that rows there have means near 0.
    assert abs(float(kept[:, :, 0].mean()) - 1) < 0.3


# -- the text part -----------------------------------------------------------------------------------------------------


def test_the_embedding_has_rows_that_are_no_logits(engine: Engine, model: Mllama, images: MllamaImages) -> None:
    assert (model.n_vocab, model.n_input_ids, images.token) == (320, 328, 320)
    assert engine.logits(prompt("a", CAT, "b"))[-1].shape == (320,)


def test_text_gates_are_stored_raw(engine: Engine, model: Mllama, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model takes their tanh; and each multiplies what its branch adds, so closed gates change nothing."""
    weights, o = CASE.weights(harness.load(CASE).shapes), model.options
    layer = model.layers[1]
    source = "language_model.model.layers.1.cross_attn_"
    assert layer.attn_gate.value == pytest.approx(float(weights[f"{source}attn_gate"][0]), rel=1e-6)
    assert layer.ffn_gate.value == pytest.approx(float(weights[f"{source}mlp_gate"][0]), rel=1e-6)
    x = numbers(5, o.n_embd)

    def out(attention: float, feed_forward: float) -> FloatArray:
        monkeypatch.setattr(layer.attn_gate, "value", attention)
        monkeypatch.setattr(layer.ffn_gate, "value", feed_forward)

        def build(ctx: Context) -> Tensor:
            view = _shown(ctx, o, 5)
            made: Tensor = layer.forward(ctx.from_floats(x), None, view, o)
            return made

        return computed(engine, build)

    np.testing.assert_array_equal(out(0, 0), x)
    factor = np.tanh(2) / np.tanh(1)
    np.testing.assert_allclose(out(0, 2) - x, factor * (out(0, 1) - x), atol=1e-5)
    np.testing.assert_allclose(out(2, 0) - x, factor * (out(1, 0) - x), atol=1e-5)


def _shown(ctx: Context, o: Any, n: int) -> Any:
    """A cache of one image with 3 rows, which all rows see."""
    keys = ctx.from_floats(numbers(o.n_head_kv, 3, o.head_dim, seed=2))
    values = ctx.from_floats(numbers(o.n_head_kv, 3, o.head_dim, seed=3))
    mask = ctx.from_floats(np.zeros((n, 3), np.float32), dtype="f16")
    gate = ctx.from_floats(np.ones((n, 1), np.float32))
    return SimpleNamespace(
        flash_attention=True, rotation=0, sees_images=True, gate=gate, get=lambda: (keys, values, mask)
    )


def test_rows_before_an_image_take_nothing_from_it(engine: Engine) -> None:
    """transformers lets them attend to all images, those of later turns included; no prefix could be reused so."""
    text, with_image = engine.logits("It is here: "), engine.logits(prompt("It is here: ", CAT, "see"))
    np.testing.assert_allclose(with_image[: len(text)], text, atol=1e-5)
    n = len(text)
    assert np.abs(with_image[n] - engine.logits(prompt("It is here: ", DOG))[n]).max() > 1e-2


def test_text_runs_without_images(engine: Engine) -> None:
    """Cross-attention layers are skipped, beside a request that has an image too."""
    alone = engine.generate("words", FEW).tokens
    both = [engine.submit(p, FEW, cache=False) for p in ("words", prompt(CAT, "words"))]
    assert both[0].result().tokens == alone
    assert both[1].result().tokens != alone


def test_images_at_the_beginning_stand_before_the_token_that_begins_a_text(
    engine: Engine, images: MllamaImages
) -> None:
    image, bos, token = Input(-1, MediaItem(1, 1, lambda: numbers(1, 1), cross_attention=True)), Input(317), Input(5)
    for given, order in {
        (bos, image, token): [320, 317, 5],
        (bos, image, image): [320, 320, 317],
        (bos, token, image): [317, 5, 320],
        (token, image): [5, 320],
        (bos,): [317],
        (): [],
    }.items():
        assert [x.token for x in images.post_tokenize(list(given))] == order


def test_cross_attention_of_ollamas_files_is_put_back_in_order(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its converter makes pairs of the rows of q and k, and leaves the weights of q_norm and k_norm."""
    ours = metadata(path)
    theirs = Metadata({k: v for k, v in ours.values.items() if k != "mllama.image_token_id"}, "mllama")
    text_only = Metadata({k: v for k, v in theirs.values.items() if ".vision." not in k}, "mllama")
    assert [read_text(m, 328).cross_pairs for m in (ours, theirs, text_only)] == [False, True, False]
    monkeypatch.setattr(text, "read_text", lambda given, n: read_text(theirs, n))
    golden = harness.load(CASE)
    weights = {name: _paired(name, values) for name, values in CASE.weights(golden.shapes).items()}
    convert_model(CASE.write(tmp_path / "source", golden.config, weights), tmp_path / "theirs.gguf", "f32")
    with harness.engine(tmp_path / "theirs.gguf") as engine:
        for name in ("one", "runs"):
            rows = engine.logits(CASE.segments(CASE.prompts[name]))[golden.answers[name].rows]
            assert difference(rows, golden.answers[name].logits) <= harness.TOLERANCE


def _paired(name: str, values: FloatArray) -> FloatArray:
    if not name.endswith(("cross_attn.q_proj.weight", "cross_attn.k_proj.weight")):
        return values
    halves = values.reshape(-1, 2, 8, values.shape[1])  # heads of 16
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(values.shape)


# -- the cache ---------------------------------------------------------------------------------------------------------


def test_images_side_by_side_are_seen_together_and_apart_alone(engine: Engine) -> None:
    """As MllamaProcessor's mask has it."""
    apart = engine.logits(prompt("a", CAT, "b", DOG, "c"))
    assert np.abs(apart[-1] - engine.logits(prompt("a", DOG, "b", DOG, "c"))[-1]).max() > 1e-3  # through "b" alone
    inputs = prompt_inputs(engine._loaded, prompt("a", CAT, DOG, "c"))
    assert (inputs.longest_image_run, len(inputs.groups)) == (2, 2)


def test_too_many_images_side_by_side_are_refused(engine: Engine) -> None:
    room = engine.config.parallel + 3
    many = [Picture(9, 9, seed) for seed in range(room + 1)]
    assert engine.generate(prompt("a", *many[:-1], "b"), FEW).tokens
    with pytest.raises(ImageError, match=f"{room + 1} images of the prompt stand side by side"):
        engine.generate(prompt("a", *many, "b"), FEW)
    assert engine.generate(prompt("a", *many[:3], "b", *many[3:], "c"), FEW).tokens


def test_the_same_image_in_eight_sequences_is_encoded_once(path: Path) -> None:
    with harness.engine(path, parallel=8, num_ctx=64) as engine:
        asked = [engine.submit(prompt(f"{i}", CAT, "?"), FEW) for i in range(8)]
        answers = [request.result().tokens for request in asked]
        assert engine.metrics.encoded_images == 1
        alone = [engine.generate(prompt(f"{i}", CAT, "?"), FEW, cache=False).tokens for i in range(8)]
    assert answers == alone


def test_a_conversation_with_more_images_than_the_cache_holds(path: Path) -> None:
    """Older images give up their place; earlier turns shift out, images included, and nothing grows."""
    with harness.engine(path, parallel=1, num_ctx=64) as engine, engine.session() as session:
        for turn in range(12):
            session.append(prompt(f"turn {turn} ", Picture(30 + turn, 20, turn), "what?"), on_overflow="shift")
            assert len(session.generate(FEW, on_overflow="shift").tokens) == 4
        assert len(session.tokens) <= 64


def test_a_saved_session_sees_the_rows_of_its_images(path: Path, tmp_path: Path) -> None:
    """Sessions with pictures of one tile, two, and four are saved to a file, and forked."""
    begin = prompt("a", CAT, "b", DOG, Picture(112, 112, 3), "c")
    with harness.engine(path) as engine:
        expected = engine.generate(begin, FEW, cache=False).tokens
        with engine.session() as session:
            session.append(begin)
            session.save(tmp_path / "session")
            with session.fork() as fork:
                assert fork.generate(FEW).tokens == expected
    with harness.engine(path, parallel=2) as engine, engine.load_session(tmp_path / "session") as session:
        assert engine.metrics.encoded_images == 0
        answer = session.generate(FEW)
        assert answer.tokens == expected
        assert answer.usage.cached_tokens > 0


# -- files that do not fit ---------------------------------------------------------------------------------------------


def metadata(path: Path, **changes: Any) -> Metadata:
    with GGUFFile(str(path)) as file:
        known = known_values(file.metadata)
    changed = {known.key(name.replace("__", ".")): value for name, value in changes.items()}
    return Metadata({**known.values, **changed}, known.architecture)


@pytest.mark.parametrize(("name", "value", "message"), [
    ("vision__image_size", 50, "no multiple of vision.patch_size"),
    ("vision__max_num_tiles", 0, "vision.max_num_tiles is 1 to 64, got 0"),
    ("vision__num_channels", 4, "is 4; pictures have 3"),
    ("vision__intermediate_layers_indices", [4], "numbers of layers below 4"),
    ("vision__global__block_count", 5000, "at most"),
    ("vision__image_std", [1.0, 0.0, 1.0], "above 0"),
])  # fmt: skip
def test_sizes_of_the_tower_are_checked(path: Path, name: str, value: Any, message: str) -> None:
    with pytest.raises(ModelFormatError, match=message):
        read_vision(metadata(path, **{name: value}))


def test_sizes_of_the_text_part_are_checked(path: Path) -> None:
    with pytest.raises(ModelFormatError, match="at least vocab_size 400"):
        read_text(metadata(path, vocab_size=400), 328)
    with pytest.raises(ModelFormatError, match="numbers of layers below 5"):
        read_text(metadata(path, attention__cross_attention_layers=[5]), 328)
