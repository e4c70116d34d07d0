"""Operations on images and rotation with several axes: cases that a reader can follow, torch's answers, refusals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ollama_engine.errors import ShapeError
from ollama_engine.ml import ops
from ollama_engine.ml.graph.context import Context
from ollama_engine.ml.graph.tensor import Tensor
from tests.ml.ops import reference_image as ref

RNG = np.random.default_rng(20_261_122)


def normal(*shape: int) -> NDArray[np.float32]:
    return RNG.normal(0, 1, shape).astype(np.float32)


def value(ctx: Context, out: Tensor) -> NDArray:
    ctx.forward(out)
    ctx.compute()
    return out.numpy()


# -- convolution -------------------------------------------------------------------------------------------------------


def test_patches_are_columns_of_channel_row_and_column(ctx: Context) -> None:
    """The order in which conversion flattens kernels: [c, kh, kw] with columns fastest."""
    image = np.arange(2 * 4 * 4, dtype=np.float32).reshape(2, 4, 4)
    out = value(ctx, ops.im2col(ctx.zeros("f32", (2, 2, 2, 5)), ctx.from_floats(image), stride=2))
    assert out.shape[-3:] == (2, 2, 8)
    np.testing.assert_array_equal(out.reshape(2, 2, 8)[1, 0], [8, 9, 12, 13, 24, 25, 28, 29])


@pytest.mark.parametrize("stride", [1, 2, (3, 1)], ids=str)
@pytest.mark.parametrize("padding", [0, 1, (2, 0)], ids=str)
def test_conv_2d(ctx: Context, stride: Any, padding: Any) -> None:
    kernel, image = normal(5, 3, 2, 3), normal(2, 3, 7, 6)
    y = ops.conv_2d(ctx.from_floats(kernel), ctx.from_floats(image), stride=stride, padding=padding)
    expected = ref.conv_2d(kernel, image, ref.pair(stride), ref.pair(padding), (1, 1))
    np.testing.assert_allclose(value(ctx, y), expected, atol=1e-5)


def test_a_mean_counts_zeros_beyond_the_edges(ctx: Context) -> None:
    y = ops.pool_2d(ctx.from_floats(np.ones((1, 1, 4, 4), np.float32)), 2, padding=1)
    np.testing.assert_array_equal(
        value(ctx, y).reshape(3, 3), [[0.25, 0.5, 0.25], [0.5, 1, 0.5], [0.25, 0.5, 0.25]]
    )  # fmt: skip


def test_pad_by_dimension(ctx: Context) -> None:
    x = ctx.from_floats(np.array([[1, 2, 3], [4, 5, 6]], np.float32))
    np.testing.assert_array_equal(value(ctx, ops.pad(x, (1, 0), (0, 1))), [[0, 1, 2, 3], [0, 4, 5, 6], [0, 0, 0, 0]])


@pytest.mark.parametrize(("mode", "row"), [("circular", [2, 3, 1, 2, 3, 1]), ("reflect", [3, 2, 1, 2, 3, 2])])
def test_pad_with_values_of_the_row(ctx: Context, mode: str, row: list[int]) -> None:
    y = ops.pad(ctx.from_floats(np.array([1, 2, 3], np.float32)), (2, 1), mode=mode)
    np.testing.assert_array_equal(value(ctx, y), row)


# -- torch -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [(5, 9), (14, 14), (3, 2)], ids=str)
@pytest.mark.parametrize(
    ("mode", "options"),
    [
        ("nearest", {}),
        ("bilinear", {}),
        ("bilinear", {"align_corners": True}),
        ("bilinear", {"antialias": True}),
        ("bicubic", {}),
        ("bicubic", {"align_corners": True}),
    ],
    ids=str,
)
def test_interpolate_like_torch(ctx: Context, size: tuple[int, int], mode: str, options: dict[str, bool]) -> None:
    torch = pytest.importorskip("torch")
    x = normal(2, 3, 7, 6)
    expected = torch.nn.functional.interpolate(torch.from_numpy(x), size=(size[1], size[0]), mode=mode, **options)
    y = ops.interpolate(ctx.from_floats(x), *size, mode, **options)
    np.testing.assert_allclose(value(ctx, y), expected.numpy(), atol=2e-5)


def test_windows_like_torch(ctx: Context) -> None:
    torch = pytest.importorskip("torch")
    kernel, image = normal(5, 3, 2, 3), normal(2, 3, 9, 8)
    x = torch.from_numpy(image)
    options: dict[str, Any] = {"stride": (2, 1), "padding": (1, 2), "dilation": (2, 1)}  # (vertical, horizontal)
    turned = {name: pair[::-1] for name, pair in options.items()}
    y = ops.conv_2d(ctx.from_floats(kernel), ctx.from_floats(image), **turned)
    pooled = ops.pool_2d(ctx.from_floats(image), (3, 2), stride=(2, 1), padding=(1, 0), mode="max")
    mean = ops.pool_2d(ctx.from_floats(image), 4)
    ctx.forward(y, pooled, mean)
    ctx.compute()
    functional = torch.nn.functional
    np.testing.assert_allclose(y.numpy(), functional.conv2d(x, torch.from_numpy(kernel), **options), atol=1e-5)
    np.testing.assert_allclose(pooled.numpy(), functional.max_pool2d(x, (2, 3), (1, 2), (0, 1)))
    np.testing.assert_allclose(mean.numpy(), functional.avg_pool2d(x, 4), atol=1e-6)


# -- rotation ----------------------------------------------------------------------------------------------------------


def rotated(ctx: Context, x: NDArray, positions: NDArray, *args: Any, **kwargs: Any) -> NDArray:
    rows = ctx.from_ints(positions.astype(np.int32).reshape(-1), (positions.shape[1], 4))
    return value(ctx, ops.rope_multi(ctx.from_floats(x), rows, *args, **kwargs))


@pytest.mark.parametrize("mode", ["sections", "interleaved"])
def test_text_positions_are_plain_rotation(ctx: Context, mode: str) -> None:
    """Where all axes have one position, as text has, the result is that of one axis."""
    x, at = normal(5, 2, 32), np.arange(5)
    plain = ops.rope(ctx.from_floats(x), ctx.from_ints(at), 32, mode="neox")
    ctx.forward(plain)
    np.testing.assert_allclose(rotated(ctx, x, np.stack([at] * 4), 32, (4, 6, 6), mode=mode), plain.numpy(), atol=1e-5)


@pytest.mark.parametrize(
    ("mode", "sections", "axes"),
    [
        ("sections", (4, 4, 8), "tttthhhhwwwwwwww"),
        ("sections", (1, 2), "thhthhth"),  # after the last section the first begins again
        ("interleaved", (4, 4, 4), "thwthwthwthw"),
        ("interleaved", (4, 4, 6), "thwthwthwthwee"),  # what is over turns by the fourth axis
    ],
)
def test_each_pair_turns_by_its_axis(ctx: Context, mode: str, sections: tuple[int, ...], axes: str) -> None:
    """An axis whose positions are 0 leaves its pairs as they are."""
    x, pairs = normal(1, 1, 2 * len(axes)), len(axes)
    for axis, letter in enumerate("thwe"):
        positions = np.zeros((4, 1))
        positions[axis] = 3
        moved = rotated(ctx, x, positions, 2 * pairs, sections, mode=mode) != x
        assert moved.reshape(2, pairs).any(0).tolist() == [letter == a for a in axes]


def test_vision_begins_angles_anew_with_each_axis(ctx: Context) -> None:
    x = normal(6, 2, 32)
    positions = np.array([[0, 0, 0, 1, 1, 1], [0, 1, 2, 0, 1, 2], [0] * 6, [0] * 6])
    angle = np.concatenate([positions[a][:, None] * 10000.0 ** (-np.arange(8) / 8) for a in (0, 1)], axis=1)[:, None]
    first, second = x[..., :16], x[..., 16:]
    expected = np.concatenate(
        [first * np.cos(angle) - second * np.sin(angle), second * np.cos(angle) + first * np.sin(angle)], axis=-1
    )
    np.testing.assert_allclose(rotated(ctx, x, positions, 16, (8, 8), mode="vision"), expected, atol=1e-5)


def test_an_offset_rotates_the_later_dimensions(ctx: Context) -> None:
    """Rows in the first half, columns in the second: the rotation of patches in Pixtral and Llama 4."""
    x, at = normal(4, 2, 16), ctx.from_ints(np.arange(4))
    half = ops.rope(ctx.from_floats(x), at, 8, offset=8)
    alone = ops.rope(ctx.from_floats(np.ascontiguousarray(x[..., 8:])), at, 8)
    ctx.forward(half, alone)
    ctx.compute()
    np.testing.assert_array_equal(half.numpy()[..., :8], x[..., :8])
    np.testing.assert_allclose(half.numpy()[..., 8:], alone.numpy(), atol=1e-6)


# -- refusals ----------------------------------------------------------------------------------------------------------

Call = Callable[[Context], object]


def f32(c: Context, *shape: int) -> Tensor:
    return c.input("f32", shape)


def turned(c: Context, sections: Any = (2, 2), mode: str = "sections", *, n_dims: int = 8, axes: int = 4) -> Tensor:
    return ops.rope_multi(f32(c, 8, 1, 3), c.input("i32", (3, axes)), n_dims, sections, mode=mode)


REFUSALS: list[tuple[str, Call, str]] = [
    ("channels", lambda c: ops.conv_2d(f32(c, 2, 2, 3), f32(c, 9, 9, 4)), "has 3 channels, f32\\[9, 9, 4\\] has 4"),
    ("a kernel too large", lambda c: ops.conv_2d(f32(c, 10, 2), f32(c, 9, 9)), "window of 10 is larger"),
    ("dilated too far", lambda c: ops.im2col(f32(c, 3, 3), f32(c, 4, 9), dilation=2), "window of 5 is larger"),
    ("stride of 0", lambda c: ops.conv_2d(f32(c, 2, 2), f32(c, 9, 9), stride=0), "stride is 1 to"),
    ("three strides", lambda c: ops.conv_2d(f32(c, 2, 2), f32(c, 9, 9), stride=(1, 1, 1)), "number or"),
    ("negative padding", lambda c: ops.conv_2d(f32(c, 2, 2), f32(c, 9, 9), padding=-1), "padding is 0 to"),
    ("a kernel of blocks", lambda c: ops.conv_2d(c.zeros("q8_0", (32, 2)), f32(c, 32, 9)), "f32, f16 or bf16"),
    ("an image of halves", lambda c: ops.conv_2d(f32(c, 2, 2), c.zeros("f16", (9, 9))), "expected f32"),
    ("an image turned", lambda c: ops.pool_2d(ops.transpose(f32(c, 4, 9)), 2), "must be contiguous"),
    ("an image of 2**32 bytes", lambda c: ops.im2col(f32(c, 1, 1), f32(c, 1 << 16, 1 << 15)), "less than 2\\*\\*31"),
    ("unknown pool", lambda c: ops.pool_2d(f32(c, 4, 4), 2, mode="sum"), "mode is avg or max"),
    ("padding beyond the kernel", lambda c: ops.pool_2d(f32(c, 4, 4), 2, padding=2), "at most half"),
    ("a pool too large", lambda c: ops.pool_2d(f32(c, 4, 4), 5), "window of 5 is larger"),
    ("no widths", lambda c: ops.pad(f32(c, 4)), "1 to 4 pairs"),
    ("one width", lambda c: ops.pad(f32(c, 4), (1,)), "widths are pairs"),
    ("negative width", lambda c: ops.pad(f32(c, 4), (-1, 0)), "not negative"),
    ("width beyond count", lambda c: ops.pad(f32(c, 4), (1 << 31, 0)), "below 2\\*\\*31"),
    ("reflect too far", lambda c: ops.pad(f32(c, 4), (4, 0), mode="reflect"), "below its size"),
    ("reflect of columns", lambda c: ops.pad(f32(c, 4, 4), (0, 0), (1, 0), mode="reflect"), "first dimension"),
    ("circular too far", lambda c: ops.pad(f32(c, 4), (5, 0), mode="circular"), "at most the size"),
    ("unknown padding", lambda c: ops.pad(f32(c, 4), (1, 1), mode="edge"), "mode is zero"),
    ("no width", lambda c: ops.interpolate(f32(c, 4, 4), 0, 3), "from 1 to"),
    ("a side too long", lambda c: ops.interpolate(f32(c, 4, 4), 1 << 21, 3), "up to 1048576"),
    ("unknown interpolation", lambda c: ops.interpolate(f32(c, 4, 4), 3, 3, "lanczos"), "mode is nearest"),
    ("antialias nearest", lambda c: ops.interpolate(f32(c, 4, 4), 3, 3, antialias=True), "goes with bilinear"),
    ("three axes", lambda c: turned(c, axes=3), "i32 positions \\[3, 4\\]"),
    ("sections beyond the pairs", lambda c: turned(c, (2, 3)), "sum up to 1 to 4"),
    ("sections of nothing", lambda c: turned(c, (0, 0)), "sum up to 1 to 4"),
    ("the last axis alone", lambda c: turned(c, (0, 0, 0, 4)), "not all of the last axis"),
    ("negative section", lambda c: turned(c, (-1, 2)), "0 to 4 pairs each"),
    ("five sections", lambda c: turned(c, (1, 1, 1, 1, 0)), "1 to 4 numbers"),
    ("vision of a whole head", lambda c: turned(c, mode="vision"), "half of 8"),
    ("vision with gaps", lambda c: turned(c, (0, 2), "vision", n_dims=4), "come last"),
    ("unknown rotation", lambda c: turned(c, mode="neox"), "mode is sections, interleaved, vision"),
    ("an odd offset", lambda c: ops.rope(f32(c, 8, 1, 2), c.input("i32", (2,)), 4, offset=1), "offset is even"),
    ("an offset too large", lambda c: ops.rope(f32(c, 8, 1, 2), c.input("i32", (2,)), 4, offset=6), "0 to 4"),
]  # fmt: skip


@pytest.mark.parametrize(("attempt", "message"), [c[1:] for c in REFUSALS], ids=[c[0] for c in REFUSALS])
def test_refusals(ctx: Context, attempt: Call, message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        attempt(ctx)
