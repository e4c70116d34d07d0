"""Mistral 3 beside the comparisons with transformers that all families have: what other engines got wrong, by name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from ollama_engine import Engine
from ollama_engine.convert import convert_model
from ollama_engine.errors import ModelFormatError
from ollama_engine.input import FloatArray, Input, MediaItem
from ollama_engine.ml.gguf.metadata import Metadata
from ollama_engine.ml.graph.context import Context
from ollama_engine.models.mistral3.multimodal import PixtralMultimodal
from ollama_engine.models.mistral3.preprocess import Preprocessor
from ollama_engine.models.mistral3.vision import PAIRS, VisionOptions, read_options
from tests.models.vision import harness
from tests.models.vision.harness import N_TEXT, cases, greedy
from tests.models.vision.pictures import Picture
from tests.support.mmproj import MISTRAL3, cut, without_keys

pytest.importorskip("PIL", reason="Pillow is not installed")

CASE = next(case for case in cases() if case.name == "mistral3")
KEYS: Mapping[str, Any] = {
    "vision.block_count": 4,
    "vision.embedding_length": 32,
    "vision.feed_forward_length": 40,
    "vision.attention.head_count": 2,
    "vision.patch_size": 14,
}
IMAGE, BREAK, END = N_TEXT, N_TEXT + 1, N_TEXT + 2


class Text:
    """The options of a text model that the vision part asks for."""

    n_embd = 64
    norm_eps = 1e-5


def metadata(**keys: Any) -> Metadata:
    return Metadata({f"mistral3.{key}": value for key, value in {**KEYS, **keys}.items()}, "mistral3")


def options(**keys: Any) -> VisionOptions:
    text: Any = Text
    return read_options(metadata(**keys), text)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return harness.converted(CASE, tmp_path_factory.mktemp("mistral3"))


def reader(engine: Engine) -> PixtralMultimodal:
    model: Any = engine._loaded.model
    assert isinstance(model.multimodal, PixtralMultimodal)
    return model.multimodal


def encoded(path: Path, picture: Picture) -> FloatArray:
    with harness.engine(path) as engine, Context(engine._loaded.backend) as ctx:
        out = reader(engine).encode_multimodal(ctx, reader(engine).preprocess(picture.draw()))
        ctx.forward(out)
        ctx.alloc()
        ctx.compute()
        return out.numpy().astype(np.float32)


# -- sizes -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("picture", "grid"),
    [
        ((28, 28), (1, 1)),
        ((29, 28), (2, 1)),
        ((42, 70), (2, 3)),  # 3 by 5 patches: an odd row or column would be lost when patches merge
        ((1, 1), (1, 1)),
        ((1540, 1540), (55, 55)),
        ((1541, 3000), (29, 55)),
        ((10_000, 10), (55, 1)),
        ((10_000, 1), (55, 1)),  # shrinks to less than a pixel
    ],
)
def test_sides_are_rounded_up_to_whole_blocks(picture: tuple[int, int], grid: tuple[int, int]) -> None:
    assert Preprocessor(metadata(), options()).grid(*picture) == grid


def test_the_longest_edge_is_that_of_the_processor_or_of_the_tower() -> None:
    assert Preprocessor(metadata(), options()).longest == 1540
    keys = {"vision.image_size": 1024}
    assert Preprocessor(metadata(**keys), options()).longest == 1024
    assert Preprocessor(metadata(**keys, **{"vision.longest_edge": 700}), options()).longest == 700
    for longest in (0, 2**32 - 1):
        with pytest.raises(ModelFormatError, match=rf"longest_edge is {longest}, expected 1 to 16384"):
            Preprocessor(metadata(**{"vision.longest_edge": longest}), options())


def test_the_largest_image_is_a_square(path: Path) -> None:
    with harness.engine(path) as engine:
        largest = reader(engine).largest_image()
        assert largest.grid == (7, 7)
        for sides in ((56, 56), (1000, 1), (1, 1000), (900, 1000)):
            assert reader(engine).preprocess(Picture(*sides).draw()).n_inputs <= largest.n_inputs


# -- rows --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("grid", [(1, 1), (1, 3), (3, 1), (2, 3)])
def test_each_row_is_a_part_with_a_token_behind_it(grid: tuple[int, int], path: Path) -> None:
    """The last one ends the image. No row must share a batch with another, nor its inputs with each other."""
    rows, columns = grid
    embeddings = np.arange(rows * columns, dtype=np.float32)[:, None]
    item = MediaItem(hash=7, n_inputs=rows * columns, embeddings=lambda: embeddings, grid=grid)
    with harness.engine(path) as engine:
        written = reader(engine).post_tokenize([Input(5), Input(-1, item), Input(6)])
    row = [IMAGE] * columns
    assert [x.token for x in written] == [5, *([*row, BREAK] * (rows - 1)), *row, END, 6]
    assert not any(x.same_batch for x in written)
    parts = [x.media for x in written if x.media is not None]
    assert [written.index(x) for x in written if x.media is not None] == [1 + i * (columns + 1) for i in range(rows)]
    assert np.concatenate([part.embeddings() for part in parts]).tolist() == embeddings.tolist()
    assert len({part.hash for part in parts}) == rows


def test_rows_may_be_in_different_batches(path: Path) -> None:
    prompt = CASE.segments(("a", Picture(56, 56), "b"))
    with harness.engine(path) as engine:
        whole = list(engine.generate(prompt, greedy(CASE)).tokens)
    with harness.engine(path, batch_size=4) as engine:
        assert list(engine.generate(prompt, greedy(CASE)).tokens) == whole


# -- files -------------------------------------------------------------------------------------------------------------


def test_a_file_without_vision_layers_is_text_only(path: Path, tmp_path: Path) -> None:
    golden = harness.load(CASE)
    folder = CASE.write(tmp_path / "folder", golden.config, CASE.weights(golden.shapes))
    convert_model(folder, tmp_path / "text.gguf", "f32", vision=False)
    with harness.engine(tmp_path / "text.gguf") as text, harness.engine(path) as whole:
        model: Any = text._loaded.model
        assert model.multimodal is None
        assert list(text.generate("ab", greedy(CASE)).tokens) == list(whole.generate("ab", greedy(CASE)).tokens)


def test_queries_and_keys_of_mmproj_files_turn_in_pairs(path: Path, tmp_path: Path) -> None:
    """Those of Ollama's files turn in halves: with rows in the other order, and the key that tells so, all is equal."""
    picture = Picture(50, 30)
    expected = encoded(path, picture)
    paired = rewritten(path, tmp_path / "paired.gguf", pairs=True)
    np.testing.assert_allclose(encoded(paired, picture), expected, atol=1e-4 * expected.std())
    wrong = rewritten(path, tmp_path / "wrong.gguf", pairs=False)
    assert np.abs(encoded(wrong, picture) - expected).max() > 0.1 * expected.std(), "the order of rows matters"


def rewritten(path: Path, target: Path, *, pairs: bool | None = None, image: int | None = None) -> Path:
    """The file with the rows of the tower's queries and keys in pairs, and the key that says so where `pairs` is true;
    or with another id of the image token.
    """
    source = gguf.GGUFReader(path)
    writer = gguf.GGUFWriter(target, "mistral3")
    for field in source.fields.values():
        if image is not None and field.name == "mistral3.image_token_index":
            writer.add_uint32(field.name, image)
        elif not field.name.startswith(("GGUF.", "general.architecture")):
            kind, sub = field.types[0], field.types[-1] if len(field.types) > 1 else None
            writer.add_key_value(field.name, field.contents(), kind, sub)
    if pairs:
        writer.add_string(f"mistral3.{PAIRS}", "pixtral")
    for tensor in source.tensors:
        values = tensor.data
        if pairs is not None and re.fullmatch(r"v\.blk\.\d+\.attn_[qk]\.weight", tensor.name):
            split = values.reshape(CASE.config["vision_config"]["num_attention_heads"], 2, -1, values.shape[1])
            values = np.ascontiguousarray(split.swapaxes(1, 2).reshape(values.shape))
        writer.add_tensor(tensor.name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


def test_a_file_of_ollama_lacks_what_its_engine_knows_by_heart(path: Path, tmp_path: Path) -> None:
    """Ids of tokens, epsilon, and the longest edge, which is the tower's then."""
    names = {"image_token_index", "vision.longest_edge", "vision.attention.layer_norm_epsilon", "spatial_merge_size"}
    bare = without_keys(path, tmp_path / "bare.gguf", {f"mistral3.{name}" for name in names})
    golden = harness.load(CASE)
    with harness.engine(bare) as engine:
        for name, prompt in CASE.prompts.items():
            answer = engine.generate(CASE.segments(prompt), greedy(CASE))
            assert list(answer.tokens) == golden.answers[name].tokens


def test_a_text_model_and_an_mmproj_file_answer_as_one_file(path: Path, tmp_path: Path) -> None:
    """The tokens around images have no keys there: they are found by their text."""
    text, part = cut(path, tmp_path, MISTRAL3)
    golden = harness.load(CASE)
    with harness.engine(text, projector=part) as engine:
        for name, prompt in CASE.prompts.items():
            answer = engine.generate(CASE.segments(prompt), greedy(CASE))
            assert list(answer.tokens) == golden.answers[name].tokens


def test_a_token_of_images_that_the_vocabulary_has_not(path: Path, tmp_path: Path) -> None:
    far = rewritten(path, tmp_path / "far.gguf", image=N_TEXT + 3)
    with pytest.raises(ModelFormatError, match=r"image_token_index is 323, expected an id below 323"):
        harness.engine(far)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"vision.attention.key_length": 8}, "equals vision.attention.key_length"),
        ({"vision.attention.head_count": 16}, "heads of the vision tower have 2 dimensions"),
        ({"spatial_merge_size": 0}, "spatial_merge_size is 0"),
        ({"vision.rope.freq_base": 1.0}, r"vision\.rope\.freq_base is 1"),
        ({"vision.block_count": 0}, "sizes of the vision tower do not fit"),
        ({"vision.num_channels": 1}, r"num_channels is 1; pictures have 3"),
    ],
)
def test_sizes_that_do_not_fit(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelFormatError, match=message):
        options(**keys)
