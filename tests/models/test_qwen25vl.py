"""Qwen2.5-VL beside the comparisons with transformers that all families have: what other engines got wrong, by name."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ollama_engine import Engine, SamplingParams, nn
from ollama_engine.errors import ImageError, ModelFormatError
from ollama_engine.ml.device.placement import BackendParams
from ollama_engine.ml.gguf.metadata import Metadata
from ollama_engine.ml.graph.backend import Backend
from ollama_engine.ml.graph.context import Context
from ollama_engine.models.qwen25vl.images import AXES
from ollama_engine.models.qwen25vl.multimodal import Qwen25VLMultimodal
from ollama_engine.models.qwen25vl.preprocess import Preprocessor
from ollama_engine.models.qwen25vl.text import SECTIONS
from ollama_engine.models.qwen25vl.vision import VisionOptions, read_options
from ollama_engine.models.qwen25vl.windows import Windows
from ollama_engine.models.sections import read_sections
from ollama_engine.runner.core.input_processor import prompt_inputs
from tests.models.reference import import_reference
from tests.models.vision import harness
from tests.models.vision.harness import N_CTX, cases, greedy
from tests.models.vision.pictures import Picture
from tests.models.vision.reference import VisionReference
from tests.support.mmproj import QWEN25VL, cut, without_keys

pytest.importorskip("PIL", reason="Pillow is not installed")

CASE = next(case for case in cases() if case.name == "qwen25vl")
KEYS: Mapping[str, Any] = {
    "vision.block_count": 4,
    "vision.embedding_length": 32,
    "vision.attention.head_count": 2,
    "vision.patch_size": 14,
}


def metadata(**keys: Any) -> Metadata:
    values = {**KEYS, **{f"vision.{key}": value for key, value in keys.items()}}
    return Metadata({f"qwen25vl.{key}": value for key, value in values.items()}, "qwen25vl")


def options(**keys: Any) -> VisionOptions:
    return read_options(metadata(**keys), n_text=64, n_ff=40)


def preprocessor(**keys: Any) -> Preprocessor:
    """As published: patches of 14 pixels, blocks of two by two."""
    return Preprocessor(metadata(**keys), options())


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return harness.converted(CASE, tmp_path_factory.mktemp("qwen25vl"))


def reader(engine: Engine) -> Qwen25VLMultimodal:
    model: Any = engine._loaded.model
    assert isinstance(model.multimodal, Qwen25VLMultimodal)
    return model.multimodal


# -- sizes -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("picture", "expected"),
    [
        ((420, 700), (420, 700)),
        ((421, 713), (420, 700)),
        ((434, 462), (448, 448)),  # 15.5 and 16.5 blocks: halves round to the even number
        ((100, 13), (168, 28)),
        ((13, 13), (56, 56)),  # rounds to nothing, and grows to the lower limit
        ((1, 200), (28, 812)),
        ((5000, 4000), (4004, 3192)),
    ],
)
def test_sides_are_multiples_of_a_block(picture: tuple[int, int], expected: tuple[int, int]) -> None:
    assert preprocessor().size(*picture) == expected


@pytest.mark.parametrize("sides", [(1, 201), (10_000, 10)])
def test_a_picture_that_is_too_long_is_refused(sides: tuple[int, int]) -> None:
    with pytest.raises(ImageError, match=r"pictures up to 200 times as long as wide"):
        preprocessor().size(*sides)


def test_pictures_take_half_of_a_context_at_most(path: Path) -> None:
    with harness.engine(path, num_ctx=32) as engine:
        assert reader(engine).preprocess(Picture(100, 100).draw()).n_inputs <= 16
        assert reader(engine).largest_image().n_inputs <= 16


def test_the_log_says_which_pictures_the_context_shrinks(caplog: pytest.LogCaptureFixture) -> None:
    made = preprocessor(max_pixels=28 * 28 * 64)
    made.prepare(Picture(600, 600).draw())
    assert not caplog.messages, "the published limit does so everywhere"
    made.limit_rows(16)
    made.prepare(Picture(112, 112).draw())
    assert not caplog.messages, "it fits"
    made.prepare(Picture(200, 300).draw())
    (message,) = caplog.messages
    assert message == (
        "a picture of 200x300 pixels is shrunk to 84x112, since it may take half of num_ctx; the model would take it "
        "as 168x252"
    )


def test_the_largest_image_has_the_most_patches() -> None:
    made = preprocessor(max_pixels=28 * 28 * 100)
    largest = made.largest()
    assert (largest.grid, largest.n_inputs) == ((10, 10), 100)
    assert preprocessor(max_pixels=28 * 28 * 144).largest().grid == (11, 13), "with windows of four sizes"
    assert preprocessor(max_pixels=28 * 28 * 2, min_pixels=1).largest().grid == (1, 2)
    for sides in ((10, 1000), (1000, 1000), (28, 28 * 100), (640, 480)):
        height, width = made.size(*sides)
        assert height * width <= 100 * 28 * 28


@pytest.mark.parametrize("keys", [{"min_pixels": 0}, {"max_pixels": 783}, {"min_pixels": 5000, "max_pixels": 4999}])
def test_limits_that_no_picture_fits(keys: dict[str, int]) -> None:
    with pytest.raises(ModelFormatError, match=r"vision\.min_pixels is"):
        preprocessor(**keys)


# -- windows -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("grid", [(1, 1), (4, 4), (4, 5), (3, 9), (9, 3), (8, 12), (11, 13)])
def test_window_bounds_count_the_patches_of_a_block(grid: tuple[int, int]) -> None:
    """A window is side times side blocks, cut at the edge of the image, and each block is in one window."""
    rows, columns = grid
    windows = Windows.of(rows, columns, side=4)
    places = [divmod(int(block), columns) for block in windows.order]
    assert sorted(places) == [(y, x) for y in range(rows) for x in range(columns)]
    at = 0
    for count, blocks in windows.groups:
        for _ in range(count):
            window, at = places[at : at + blocks], at + blocks
            assert len({(y // 4, x // 4) for y, x in window}) == 1
            assert window == sorted(window), "blocks of a window stand row by row"
    assert at == rows * columns


def test_windows_are_those_of_transformers() -> None:
    torch, _ = import_reference()
    from transformers.vision_utils import get_vision_window_index  # noqa: PLC0415

    for rows, columns in np.random.default_rng(3).integers(1, 24, (50, 2)).tolist():
        grid = torch.tensor([[1, rows * 2, columns * 2]])
        order, bounds = get_vision_window_index(grid, spatial_merge_size=2, window_size=112, patch_size=14)
        theirs = {tuple(order[a // 4 : b // 4].tolist()) for a, b in itertools.pairwise(bounds)}
        windows, mine, at = Windows.of(rows, columns, 4), set(), 0
        for count, blocks in windows.groups:
            mine |= {tuple(part) for part in windows.order[at : at + count * blocks].reshape(count, blocks).tolist()}
            at += count * blocks
        assert mine == theirs


def test_full_layers_are_those_of_the_file() -> None:
    assert options(fullatt_block_indexes=[0, 2]).full_layers == {0, 2}
    assert options(n_wa_pattern=2).full_layers == {1, 3}
    assert options(block_count=32).full_layers == {7, 15, 23, 31}
    with pytest.raises(ModelFormatError, match=r"fullatt_block_indexes is \[4\], expected layers below 4"):
        options(fullatt_block_indexes=[4])


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"window_size": 27}, "expected at least a block of 2 patches"),
        ({"spatial_merge_size": 0}, "spatial_merge_size is 0, expected at least 1"),
        ({"attention.head_count": 16}, "heads of the vision tower have 2 dimensions"),
        ({"rope.freq_base": 0.5}, r"vision\.rope\.freq_base is 0\.5"),
    ],
)
def test_sizes_that_do_not_fit(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelFormatError, match=message):
        options(**keys)


# -- positions ---------------------------------------------------------------------------------------------------------


def test_positions_after_an_image_continue_behind_its_longer_side(path: Path) -> None:
    """Not behind the number of its inputs."""
    with harness.engine(path) as engine:
        picture = Picture(48, 24)
        grid = reader(engine).preprocess(picture.draw()).grid
        assert grid == (3, 6)
        inputs = prompt_inputs(engine._loaded, CASE.segments(("a", picture, "c", picture, "d")))
    positions = inputs.axis_positions(0, len(inputs), AXES)
    begin = 3  # BOS, a, and the token that begins an image
    image = np.array([[begin] * 18, begin + np.arange(18) // 6, begin + np.arange(18) % 6, [begin] * 18])
    np.testing.assert_array_equal(positions[:, begin : begin + 18], image)
    behind = begin + 6
    assert positions[:, begin + 18].tolist() == [behind] * AXES
    assert positions[:, begin + 19].tolist() == [behind + 1] * AXES
    second = begin + 18 + 3  # behind the end, "c", and another beginning
    np.testing.assert_array_equal(positions[:, second : second + 18], image - begin + behind + 3)
    assert positions[:, -1].tolist() == [behind + 3 + 6 + 1] * AXES


def test_positions_are_those_of_transformers(path: Path, tmp_path: Path) -> None:
    import_reference()

    reference = VisionReference(CASE, tmp_path)
    with harness.engine(path) as engine:
        for seed, (width, height) in enumerate(np.random.default_rng(4).integers(1, 160, (200, 2)).tolist()):
            pictures = Picture(width, height, seed), Picture(height, width, seed)
            if not all(map(CASE.takes, pictures)):
                continue
            prompt = ("see", pictures[0], "and", pictures[1], "!")
            inputs = reference.inputs(prompt)
            expected, _ = reference.model.model.get_rope_index(
                inputs["input_ids"], inputs["mm_token_type_ids"], inputs["image_grid_thw"]
            )
            found = prompt_inputs(engine._loaded, CASE.segments(prompt))
            np.testing.assert_array_equal(found.axis_positions(0, len(found), AXES)[:3], expected[:, 0].numpy())


def test_positions_belong_to_a_sequence_and_not_to_the_model(path: Path) -> None:
    """Sequences with images of different sizes decode in one batch, and one without image among them."""
    prompts = [
        CASE.segments((Picture(64, 16), "a")),
        "no picture",
        CASE.segments(("b", Picture(16, 48))),
        CASE.segments((Picture(40, 40), Picture(24, 8), "c")),
    ]
    with harness.engine(path, parallel=4, num_ctx=128) as engine:
        alone = [list(engine.generate(prompt, greedy(CASE), cache=False).tokens) for prompt in prompts]
        requests = [engine.submit(prompt, greedy(CASE), cache=False) for prompt in prompts]
        assert [list(request.result().tokens) for request in requests] == alone


def test_an_image_behind_a_cached_start_token_is_whole(path: Path) -> None:
    """The token that begins an image is in the cache with another image behind it. No group hangs on it."""
    first, second = (CASE.segments(("x", Picture(40, 40, seed), "?")) for seed in (1, 2))
    with harness.engine(path, batch_size=7) as engine:
        expected = list(engine.generate(second, greedy(CASE), cache=False).tokens)
        engine.generate(first, greedy(CASE))
        assert list(engine.generate(second, greedy(CASE)).tokens) == expected


def test_keys_move_by_one_number_on_all_axes() -> None:
    """A shift moves each axis alike, so keys turn as with one axis. Others passed a delta for one axis of four."""
    rng = np.random.default_rng(0)
    rope = nn.SectionedRope(n_dims=16, mode="neox", base=100.0, sections=(2, 3, 3))
    keys = rng.standard_normal((9, 2, 16)).astype(np.float32)
    positions = rng.integers(20, 50, (AXES, 9)).astype(np.int32)
    deltas = np.full(9, -13, np.int32)
    with Backend(BackendParams(threads=1, gpu_layers=0)) as backend, Context(backend) as ctx:
        there = rope(ctx.from_floats(keys), ctx.from_ints(positions))
        moved = rope.shifted(there, ctx.from_ints(deltas))
        expected = rope(ctx.from_floats(keys), ctx.from_ints(positions - 13))
        ctx.forward(moved, expected)
        ctx.alloc()
        ctx.compute()
        np.testing.assert_allclose(moved.numpy(), expected.numpy(), atol=2e-5)


@pytest.mark.parametrize("image_first", [True, False])
def test_a_full_context_is_shifted(path: Path, image_first: bool) -> None:
    picture = Picture(24, 24)
    prompt = CASE.segments((picture, "a long story" * 3) if image_first else ("a long story" * 3, picture))
    with harness.engine(path, num_ctx=64) as engine:
        params = SamplingParams(temperature=0, max_tokens=100, logit_bias=CASE.banned)
        assert len(engine.generate(prompt, params, on_overflow="shift").tokens) == 100


# -- files -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sections", [[4, 6], [4, 6, 7], [16, 16, 0, -16], [4, 6, 6, 0, 0]])
def test_sections_that_do_not_fill_a_head(sections: list[int]) -> None:
    with pytest.raises(ModelFormatError, match="expected 3 or 4 numbers of pairs that add up to 16"):
        read_sections(Metadata({"qwen25vl.rope.mrope_section": sections}, "qwen25vl"), SECTIONS, pairs=16)


def test_llama_cpp_writes_a_fourth_section() -> None:
    metadata = Metadata({"qwen25vl.rope.mrope_section": [4, 6, 6, 0]}, "qwen25vl")
    assert read_sections(metadata, SECTIONS, 16) == (4, 6, 6, 0)


def test_a_file_of_ollama_lacks_what_its_engine_knows_by_heart(path: Path, tmp_path: Path) -> None:
    """Ids of tokens, the width of the tower, and how pictures are made: they are found, or as published."""
    ids = ("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id")
    keys = ("feed_forward_length", "min_pixels", "max_pixels", "tokens_per_second", "temporal_patch_size")
    names = {f"qwen25vl.{name}" for name in (*ids, *(f"vision.{key}" for key in keys))}
    prompt = CASE.segments(("a", Picture(32, 40), "b"))
    with harness.engine(path) as engine:
        expected = engine.generate(prompt, greedy(CASE)).tokens
    with harness.engine(without_keys(path, tmp_path / "bare.gguf", names)) as engine:
        assert reader(engine).preprocess(Picture(400, 400).draw()).n_inputs == N_CTX // 2
        engine.generate(prompt, greedy(CASE))
    only = names - {"qwen25vl.vision.min_pixels", "qwen25vl.vision.max_pixels"}
    with harness.engine(without_keys(path, tmp_path / "some.gguf", only)) as engine:
        assert engine.generate(prompt, greedy(CASE)).tokens == expected


@pytest.mark.parametrize(("name", "kind"), [("qwen25vl", "qwen2.5vl_merger"), ("qwen2vl", "qwen2vl_merger")])
@pytest.mark.parametrize("swapped", [False, True])
def test_a_text_model_and_an_mmproj_file_answer_as_one_file(
    name: str, kind: str, swapped: bool, tmp_path: Path
) -> None:
    """The tokens around images have no keys there: they are found by their text."""
    case = next(case for case in cases() if case.name == name)
    text, part = cut(harness.converted(case, tmp_path), tmp_path, QWEN25VL, kind=kind, swapped=swapped)
    golden = harness.load(case)
    with harness.engine(text, projector=part) as engine:
        for prompt_name, prompt in case.prompts.items():
            answer = engine.generate(case.segments(prompt), greedy(case))
            assert list(answer.tokens) == golden.answers[prompt_name].tokens
