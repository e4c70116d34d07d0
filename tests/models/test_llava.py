"""LLaVA: pictures as transformers' processors make them, llama.cpp's pairs of files, and what broke others."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from ollama_engine.errors import ModelFormatError, UnsupportedModelError
from ollama_engine.ml.device.placement import BackendParams
from ollama_engine.ml.gguf.metadata import Metadata
from ollama_engine.ml.graph.backend import Backend
from ollama_engine.ml.graph.context import Context
from ollama_engine.ml.graph.tensor import Tensor
from ollama_engine.models.llava import Llava
from ollama_engine.models.llava.preprocess import Preprocessor, best_resolution
from ollama_engine.models.llava.vision import VisionOptions
from tests.models.vision import harness
from tests.models.vision.llava import CASES
from tests.models.vision.pictures import Picture
from tests.support.mmproj import Cut, cut, vision_keys

pytest.importorskip("PIL", reason="Pillow is not installed")

SETTINGS: dict[str, Any] = {
    "n_layer": 1, "n_embd": 8, "n_ff": 8, "n_head": 1, "norm_eps": 1e-5, "activation": "gelu", "class_token": True,
    "feature_layers": (1,), "keeps_class": False, "projector_activation": "gelu", "n_text": 8,
}  # fmt: skip
PUBLISHED = [336, 672, 672, 336, 672, 672, 1008, 336, 336, 1008]


def preprocessor(side: int = 336, patch: int = 14, **keys: Any) -> Preprocessor:
    options = VisionOptions(**SETTINGS, image_size=side, patch_size=patch)
    values = {f"llava.vision.{name}": value for name, value in keys.items()}
    found = {k: np.array(v, np.uint32) if isinstance(v, list) else v for k, v in values.items()}
    return Preprocessor(Metadata({"general.architecture": "llava", **found}), options, newline=True)


def tiled(**keys: Any) -> Preprocessor:
    return preprocessor(image_aspect_ratio="crop", image_grid_pinpoints=PUBLISHED, **keys)


# -- pictures in tiles -------------------------------------------------------------------------------------------------

SIZES_AND_ROWS = {
    (336, 336): 1176, (337, 335): 1176, (640, 480): 2352, (480, 640): 2340, (1000, 100): 1224, (100, 1000): 1160,
    (1, 1): 1176, (10, 10000): 576, (10000, 10): 648, (1024, 768): 2352, (672, 337): 1776,
}  # fmt: skip
"""(height, width) -> tokens of the picture, by LlavaNextProcessor with CLIP's tower at 336 pixels."""


def test_the_number_of_tokens_is_the_processors() -> None:
    made = tiled()
    found = {size: made.prepare(Picture(size[1], size[0]).draw()).n_inputs for size in SIZES_AND_ROWS}
    assert found == SIZES_AND_ROWS


def test_the_largest_image_has_every_tile() -> None:
    image = tiled().largest()
    assert image.n_inputs == 576 + 48 * 49
    assert image.arrays["patches"].shape == (5, 576, 588)
    assert preprocessor(image_aspect_ratio="crop").largest().n_inputs == 576


def test_trap_resolutions_are_height_and_width() -> None:
    """transformers lists (height, width), llama.cpp's files (width, height): a wide picture takes wide tiles."""
    wide = Picture(900, 300).draw()
    ours, theirs = (preprocessor(image_aspect_ratio="crop", **{key: [28, 84, 56, 28]}, side=28, patch=7)
                    for key in ("image_grid_pinpoints", "image_grid_sizes"))  # fmt: skip
    assert ours.prepare(wide).grid == (1, 3)
    assert theirs.prepare(wide).grid == (1, 2)


def test_of_equal_resolutions_the_one_with_the_smallest_ground() -> None:
    assert best_resolution((10, 10), ((336, 672), (672, 672), (336, 336))) == (336, 336)


@pytest.mark.parametrize("fit", ["crop", "pad", "stretch"])
def test_a_picture_of_any_proportions_takes_no_more_memory_than_its_square(fit: str) -> None:
    """The shorter edge of a line of pixels would become the square's side, and the longer one 20 million pixels."""
    import PIL.Image  # noqa: PLC0415

    line = PIL.Image.new("RGB", (60_000, 1), (10, 20, 30))
    made = preprocessor(image_aspect_ratio=fit).prepare(line)
    assert made.n_inputs == 576
    colours = np.unique(made.arrays["patches"].reshape(576, 3, -1)[:, 0])
    assert len(colours) == (1 if fit != "pad" else 2), "the line, and the ground around it"


@pytest.mark.parametrize(
    ("keys", "error", "message"),
    [
        ({"image_aspect_ratio": "round"}, UnsupportedModelError, "'round'"),
        ({"image_resample": "hamming"}, UnsupportedModelError, "'hamming'"),
        ({"image_grid_pinpoints": [336, 500]}, ModelFormatError, "multiples of 336"),
        ({"image_grid_pinpoints": [336, 336, 336]}, ModelFormatError, "multiples of 336"),
    ],
)
def test_files_that_say_what_cannot_be(keys: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        preprocessor(**keys)


def random_sizes(n: int) -> list[tuple[int, int]]:
    rng = np.random.default_rng(7)
    return [(int(w), int(h)) for w, h in np.exp(rng.uniform(0, np.log(1500), (n, 2))).astype(int) + 1]


@pytest.mark.slow
@pytest.mark.reference
def test_200_random_sizes_have_the_tokens_of_the_processor() -> None:
    pytest.importorskip("transformers")
    from transformers import LlavaNextProcessor  # noqa: PLC0415
    from transformers.models.llava_next.image_processing_pil_llava_next import (  # noqa: PLC0415
        LlavaNextImageProcessorPil,
    )

    class Counting(LlavaNextProcessor):  # type: ignore[misc,no-any-unimported]
        def __init__(self) -> None:
            self.image_processor = LlavaNextImageProcessorPil(size={"shortest_edge": 336})
            self.patch_size, self.num_additional_image_tokens = 14, 1

    made, theirs = tiled(), Counting()
    for width, height in random_sizes(200):
        expected = theirs._get_number_of_features(height, width, 336, 336) - 1
        best = best_resolution((height, width), made.resolutions)
        patches = np.zeros((1, 1, 1), np.float32)
        assert made._tiled(patches, (height, width), best).n_inputs == expected, (width, height)


# -- llama.cpp's files -------------------------------------------------------------------------------------------------

CUT = Cut(
    "mlp",
    vision_keys(
        "block_count", "embedding_length", "feed_forward_length", "attention.head_count",
        "attention.layer_norm_epsilon", "image_size", "patch_size", "feature_layer", "image_grid_pinpoints",
    ),
    (
        (r"v\.class_embedding\.weight", r"v.class_embd"),
        (r"v\.patch_embedding\.(.*)", r"v.patch_embd.\1"),
        (r"v\.position_embedding\.weight", r"v.position_embd.weight"),
        (r"v\.(pre|post)_layernorm\.(.*)", r"v.\1_ln.\2"),
        (r"v\.blk\.(\d+)\.layer_norm(\d)\.(.*)", r"v.blk.\1.ln\2.\3"),
        (r"v\.blk\.(\d+)\.attn_output\.(.*)", r"v.blk.\1.attn_out.\2"),
        (r"v\.blk\.(\d+)\.mlp\.fc1\.(.*)", r"v.blk.\1.ffn_up.\2"),
        (r"v\.blk\.(\d+)\.mlp\.fc2\.(.*)", r"v.blk.\1.ffn_down.\2"),
        (r"mm\.linear_1\.(.*)", r"mm.0.\1"),
        (r"mm\.linear_2\.(.*)", r"mm.2.\1"),
        (r"mm\.image_newline\.weight", r"model.image_newline"),
    ),
    architecture="llama",
)  # fmt: skip
NEXT = next(case for case in CASES if case.name == "llava-next")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return harness.converted(NEXT, Path(tmp_path_factory.mktemp("llava")))


@pytest.mark.parametrize("swapped", [True, False])
def test_trap_old_files_swap_ffn_up_and_ffn_down(swapped: bool, whole: Path, tmp_path: Path) -> None:
    """A text model that is called llama and its projector answer as one file does."""
    text, part = cut(whole, tmp_path, CUT, swapped=swapped)
    golden = harness.load(NEXT)
    with harness.engine(text, projector=part) as engine:
        for name in ("one", "two"):  # of two resolutions that are as good, "three" takes the one that is listed first
            answer = engine.generate(NEXT.segments(NEXT.prompts[name]), harness.greedy(NEXT))
            assert list(answer.tokens) == golden.answers[name].tokens, name


def constants(ctx: Context, path: Path) -> dict[str, Tensor]:
    tensors = gguf.GGUFReader(path).tensors
    return {t.name: ctx.from_floats(np.array(t.data, np.float32).reshape(t.shape[::-1])) for t in tensors}


def encoded(model: Llava, ctx: Context, picture: Picture) -> np.ndarray:
    assert model.multimodal is not None
    out = model.multimodal.encode_multimodal(ctx, model.multimodal.preprocess(picture.draw()))
    ctx.forward(out)
    ctx.compute()
    return out.numpy()


def metadata_of(path: Path, changes: Mapping[str, Any]) -> Metadata:
    fields = gguf.GGUFReader(path).fields
    values = {name: field.contents() for name, field in fields.items() if not name.startswith("GGUF.")}
    found = {k: np.array(v) if isinstance(v, list) and not isinstance(v[0], str) else v for k, v in values.items()}
    return Metadata({k: v for k, v in {**found, **changes}.items() if v is not None})


def test_trap_old_files_leave_out_the_blocks_behind_the_feature_layer(whole: Path) -> None:
    """They do not say which layer it is: it is their last, and not the one before."""
    n_layer = NEXT.config["vision_config"]["num_hidden_layers"]
    picture = Picture(100, 60)
    with Backend(BackendParams(threads=1), max_nodes=4096) as backend, Context(backend) as ctx:
        weights = constants(ctx, whole)
        expected = encoded(Llava(metadata_of(whole, {}), weights), ctx, picture)
        behind = (f"v.blk.{n_layer - 1}.", "v.post_layernorm.")
        left = {name: tensor for name, tensor in weights.items() if not name.startswith(behind)}
        changes = {"llava.vision.block_count": n_layer - 1, "llava.vision.feature_layer": None}
        found = encoded(Llava(metadata_of(whole, changes), left), ctx, picture)
    np.testing.assert_array_equal(found, expected)
