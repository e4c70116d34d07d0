"""Pictures in tiles: llama.cpp's pairs of files, how many tiles pictures have, and files that say what cannot be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ollama_engine.errors import ImageError, ModelFormatError, UnsupportedModelError
from ollama_engine.ml.gguf.metadata import Metadata
from ollama_engine.models.idefics3 import preprocess as idefics3
from ollama_engine.models.internvl import preprocess as internvl
from ollama_engine.models.lfm2_vl import preprocess as lfm2
from ollama_engine.models.lfm2_vl.vision import VisionOptions
from ollama_engine.models.tiled import TiledOptions
from ollama_engine.multimodal.tiles import closest_grid
from tests.models.vision import harness
from tests.models.vision.pictures import Picture
from tests.support.mmproj import Cut, changed, cut, vision_keys

pytest.importorskip("PIL", reason="Pillow is not installed")

# -- llama.cpp's files -------------------------------------------------------------------------------------------------

_KEYS = (
    "block_count", "embedding_length", "feed_forward_length", "attention.head_count", "attention.layer_norm_epsilon",
    "image_size", "patch_size", "image_mean", "image_std", "projector.scale_factor", "preproc_image_size",
    "preproc_min_tiles", "preproc_max_tiles",
)  # fmt: skip
_NAMES = (
    (r"v\.class_embedding\.weight", r"v.class_embd"),
    (r"v\.(patch|position)_embedding\.(.*)", r"v.\1_embd.\2"),
    (r"v\.post_layernorm\.(.*)", r"v.post_ln.\1"),
    (r"v\.blk\.(\d+)\.layer_norm(\d)\.(.*)", r"v.blk.\1.ln\2.\3"),
    (r"v\.blk\.(\d+)\.attn_output\.(.*)", r"v.blk.\1.attn_out.\2"),
    (r"v\.blk\.(\d+)\.mlp\.fc1\.(.*)", r"v.blk.\1.ffn_up.\2"),
    (r"v\.blk\.(\d+)\.mlp\.fc2\.(.*)", r"v.blk.\1.ffn_down.\2"),
)
_TEXTS = {"idefics3": ("idefics3", "llama"), "internvl": ("internvl", "qwen2"), "internvl-3.5": ("internvl", "qwen3"),
          "lfm2-vl": ("lfm2", "lfm2")}  # fmt: skip


@pytest.mark.parametrize("name", _TEXTS)
def test_a_pair_answers_as_one_file_does(name: str, tmp_path: Path) -> None:
    """The text model has its own architecture there, and tokens around tiles are found in its vocabulary."""
    kind, text_architecture = _TEXTS[name]
    how = Cut(kind, vision_keys(*_KEYS), _NAMES, text_architecture, text_keys={"image_token_id": None})
    case = next(case for case in harness.cases() if case.name == name)
    text, part = cut(harness.converted(case, tmp_path), tmp_path, how)
    if name == "lfm2-vl":  # llama.cpp knows the published limits by heart, and the tiny model has others
        limits = {"tile_size": 24, "preproc_max_tiles": 6, "min_image_tokens": 4, "max_image_tokens": 16}
        text = changed(text, tmp_path / "t.gguf", {f"lfm2.vision.{key}": value for key, value in limits.items()})
    golden = harness.load(case)
    with harness.engine(text, projector=part) as engine:
        assert engine.info.reads_images
        assert not engine._loaded.model.unused_weights
        for prompt in ("one", "two"):
            answer = engine.generate(case.segments(case.prompts[prompt]), harness.greedy(case))
            assert list(answer.tokens) == golden.answers[prompt].tokens


# -- numbers of tiles --------------------------------------------------------------------------------------------------

SIZES: dict[str, Any] = {
    "n_layer": 1, "n_embd": 8, "n_ff": 8, "n_head": 1, "norm_eps": 1e-6, "activation": "gelu", "class_token": False,
    "n_text": 8, "merge": 2,
}  # fmt: skip


def _metadata(**keys: Any) -> Metadata:
    return Metadata({"general.architecture": "x", **{f"x.vision.{name}": value for name, value in keys.items()}})


def smolvlm(**keys: Any) -> idefics3.Preprocessor:
    """SmolVLM-256M's: tiles of 512 pixels with 64 embeddings each."""
    options = TiledOptions(**{**SIZES, "merge": 4}, image_size=512, patch_size=16)
    return idefics3.Preprocessor(_metadata(**keys), options)


def internvl3(**keys: Any) -> internvl.Preprocessor:
    return internvl.Preprocessor(_metadata(**keys), TiledOptions(**SIZES, image_size=448, patch_size=14))


def lfm2_vl(**keys: Any) -> lfm2.Preprocessor:
    options = VisionOptions(**SIZES, image_size=256, patch_size=16, n_hidden=8, tile_size=512)
    return lfm2.Preprocessor(_metadata(**keys), options)


GRIDS: dict[Any, dict[tuple[int, int], tuple[int, ...]]] = {
    smolvlm: {(640, 480): (3, 4, 832), (100, 100): (4, 4, 1088), (2000, 10): (1, 4, 320), (10, 2000): (4, 1, 320)},
    internvl3: {(640, 480): (3, 4, 3328), (100, 100): (1, 1, 256), (1000, 700): (2, 3, 1792), (900, 9): (1, 12, 3328)},
    lfm2_vl: {(640, 480): (0, 0, 234), (100, 100): (0, 0, 64), (1000, 700): (2, 3, 1783), (2000, 1000): (2, 4, 2290)},
}  # fmt: skip
"""(width, height) -> rows and columns of tiles, and embeddings of the picture."""


def test_grids_are_those_of_the_published_processors() -> None:
    for preprocessor, expected in GRIDS.items():
        made = {size: preprocessor().prepare(Picture(*size).draw()) for size in expected}
        assert {size: (*image.grid[:2], image.n_inputs) for size, image in made.items()} == expected
        assert preprocessor().largest().n_inputs >= max(image.n_inputs for image in made.values())


def test_of_grids_as_near_the_largest_that_the_picture_half_fills() -> None:
    assert closest_grid(100, 100, 448, 1, 12) == (1, 1)
    assert closest_grid(700, 700, 448, 1, 12) == (2, 2)
    assert closest_grid(2000, 2000, 448, 1, 12) == (3, 3)


def test_a_picture_without_tiles_is_one_square() -> None:
    made = smolvlm(image_splitting=False).prepare(Picture(640, 480).draw())
    assert (made.grid, made.n_inputs) == ((0, 0), 64)
    assert lfm2_vl(image_splitting=False).prepare(Picture(1000, 700).draw()).grid[:2] == (0, 0)
    assert "whole" not in lfm2_vl(use_thumbnail=False).prepare(Picture(1000, 700).draw()).arrays


def test_a_picture_that_no_published_processor_takes() -> None:
    options = VisionOptions(**SIZES, image_size=16, patch_size=4, n_hidden=8, tile_size=16)
    made = lfm2.Preprocessor(_metadata(max_image_tokens=4, min_image_tokens=1), options)
    with pytest.raises(ImageError, match="more than 4 embeddings"):
        made.prepare(Picture(900, 9).draw())


@pytest.mark.parametrize(
    ("made", "keys", "error", "message"),
    [
        (smolvlm, {"preproc_image_size": 5000}, ModelFormatError, "preproc_image_size is 5000; expected 1 to 4096"),
        (internvl3, {"preproc_min_tiles": 13}, ModelFormatError, "preproc_min_tiles is 13 and preproc_max_tiles 12"),
        (lfm2_vl, {"max_image_tokens": 8}, ModelFormatError, "fewest=64, most=8"),
    ],
)
def test_files_that_say_what_cannot_be(made: Any, keys: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        made(**keys)


@pytest.mark.parametrize(
    ("key", "value", "error"),
    [
        ("tile_size", 56, UnsupportedModelError),
        ("projector.scale_factor", 3, ModelFormatError),
        ("projector.scale_factor", 0, ModelFormatError),
    ],
)
def test_sizes_that_do_not_fit_the_tower(key: str, value: int, error: type[Exception], tmp_path: Path) -> None:
    case = next(case for case in harness.cases() if case.name == "smolvlm")
    path = changed(harness.converted(case, tmp_path), tmp_path / "x.gguf", {f"idefics3.vision.{key}": value})
    with pytest.raises(error, match=str(value)):
        harness.engine(path)


def test_a_vocabulary_without_the_tokens_of_tiles(tmp_path: Path) -> None:
    case = next(case for case in harness.cases() if case.name == "idefics3")
    from gguf import GGUFReader  # noqa: PLC0415

    whole = harness.converted(case, tmp_path)
    tokens = GGUFReader(whole).fields["tokenizer.ggml.tokens"].contents()
    renamed = [token.replace("<global-img>", "<whole>") for token in tokens]
    path = changed(whole, tmp_path / "x.gguf", {"tokenizer.ggml.tokens": renamed})
    with harness.engine(path) as engine, pytest.raises(ModelFormatError, match="no token '<global-img>'"):
        engine.generate(case.segments(case.prompts["one"]), harness.greedy(case))
