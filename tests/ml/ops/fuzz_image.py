"""Random calls of the operations on images and of the rotation with several axes, and what they should give."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.ml.ops import reference_image as ref
from tests.ml.ops.fuzz_expect import Expected, f64, mul_mat_error, rope_error, top
from tests.ml.ops.fuzz_values import Call, Env, Value

# -- sound calls -------------------------------------------------------------------------------------------------------


def _pair(env: Env, low: int, high: int) -> Any:
    values = env.rng.randint(low, high), env.rng.randint(low, high)
    return values[0] if env.rng.random() < 0.5 else values


def _image(env: Env, channels: int, largest: int = 12) -> Value:
    shape = (env.rng.randint(1, largest), env.rng.randint(1, largest), channels, env.rng.choice((1, 1, 2)))
    return env.operand("f32", shape, graph=True, odd=0.05)


def convolution(env: Env) -> Call:
    channels, dtype = env.rng.randint(1, 4), env.rng.choice(("f32", "f32", "f16", "bf16"))
    x = _image(env, channels)
    kwargs: dict[str, Any] = {"stride": _pair(env, 1, 4), "padding": _pair(env, 0, 3)}
    room = [side + 2 * extra for side, extra in zip(x.shape, ref.pair(kwargs["padding"]), strict=False)]
    size = [env.rng.randint(1, min(5, n)) for n in room]
    if env.rng.random() < 0.3:
        kwargs["dilation"] = tuple(
            env.rng.randint(1, (n - 1) // (k - 1)) if k > 1 else 3 for n, k in zip(room, size, strict=True)
        )
    kernel = env.make(dtype, (*size, channels, env.rng.randint(1, 6)))
    return Call(env.rng.choice(("im2col", "conv_2d")), [kernel, x], kwargs)


def pool_2d(env: Env) -> Call:
    x = _image(env, env.rng.randint(1, 4))
    size = (env.rng.randint(1, x.shape[0]), env.rng.randint(1, x.shape[1]))
    kwargs: dict[str, Any] = {"mode": env.rng.choice(("avg", "max"))}
    if env.rng.random() < 0.5:
        kwargs["stride"] = _pair(env, 1, 4)
    if env.rng.random() < 0.4:
        kwargs["padding"] = tuple(env.rng.randint(0, n // 2) for n in size)
    return Call("pool_2d", [x, size], kwargs)


def pad(env: Env) -> Call:
    x = env.operand("f32", env.dims(None, 6), graph=True, odd=0.05)
    mode = env.rng.choice(("zero", "zero", "circular", "reflect"))
    if mode == "reflect":
        widths = [(env.rng.randint(0, x.shape[0] - 1), env.rng.randint(0, x.shape[0] - 1))]
    else:
        widths = [(env.rng.randint(0, n), env.rng.randint(0, n)) for n in x.shape[: env.rng.randint(1, 4)]]
    return Call("pad", [x, *widths], {} if mode == "zero" else {"mode": mode})


def interpolate(env: Env) -> Call:
    mode = env.rng.choice(("nearest", "bilinear", "bicubic"))
    kwargs: dict[str, Any] = {"align_corners": True} if env.rng.random() < 0.3 else {}
    if mode == "bilinear" and not kwargs and env.rng.random() < 0.5:
        kwargs["antialias"] = True
    return Call("interpolate", [_image(env, env.rng.randint(1, 3)), env.rng.randint(1, 20), env.rng.randint(1, 20),
                                mode], kwargs)  # fmt: skip


def _sections(env: Env, pairs: int, mode: str) -> tuple[int, ...]:
    """Up to four numbers of pairs, the first above 0."""
    sizes = [env.rng.randint(1, pairs)]
    while len(sizes) < 4 and sum(sizes) < pairs and env.rng.random() < 0.8:
        sizes.append(env.rng.randint(1 if mode == "vision" else 0, pairs - sum(sizes)))
    return tuple(sizes)


def rope_multi(env: Env) -> Call:
    d, heads, n = 4 * env.rng.randint(1, 12), env.rng.randint(1, 5), env.rng.randint(1, 6)
    shape = (d, heads, n, env.rng.choice((1, 1, 2)))
    x = env.operand(env.rng.choice(("f32", "f32", "f16")), shape, graph=True, odd=0.1)
    mode = env.rng.choice(("sections", "interleaved", "vision"))
    n_dims = d // 2 if mode == "vision" else env.rng.choice((d, 2 * env.rng.randint(1, d // 2)))
    pairs = n_dims if mode == "vision" else n_dims // 2
    kwargs: dict[str, Any] = {"mode": mode}
    if env.rng.random() < 0.2:
        factors = np.exp(env.numbers.normal(0, 1, d // 2)).astype(np.float32)
        kwargs["factors"] = env.make("f32", factors.shape, data=factors)
    if env.rng.random() < 0.3:
        kwargs |= {"freq_base": env.rng.choice((100.0, 1e6)), "freq_scale": env.rng.choice((0.25, 1.0, 2.0))}
    if env.rng.random() < 0.2:
        kwargs |= {"n_ctx_orig": env.rng.choice((64, 4096)), "ext_factor": 1.0, "attn_factor": 0.8}
    positions = env.make("i32", (n, 4), limit=env.rng.choice((4, 3000)))
    return Call("rope_multi", [x, positions, n_dims, _sections(env, pairs, mode)], kwargs)


SOUND = (convolution, convolution, pool_2d, pad, interpolate, rope_multi)

# -- expectations ------------------------------------------------------------------------------------------------------


def _window_options(options: dict[str, Any]) -> tuple[ref.Pair, ref.Pair, ref.Pair]:
    return ref.pair(options.get("stride", 1)), ref.pair(options.get("padding", 0)), ref.pair(options.get("dilation", 1))


def _im2col(kernel: Value, image: Value, **options: Any) -> Expected:
    return Expected(ref.im2col(kernel.shape, f64(image), *_window_options(options)), tol=image.tol)


def _conv_2d(kernel: Value, image: Value, **options: Any) -> Expected:
    out = ref.conv_2d(f64(kernel), f64(image), *_window_options(options))
    squares = ref.conv_2d(np.ones(kernel.array.shape), f64(image) ** 2, *_window_options(options))
    sizes = np.sqrt(squares) * np.sqrt((f64(kernel) ** 2).sum(axis=(1, 2, 3)))[:, None, None]
    n = int(np.prod(kernel.shape[:3]))
    return Expected(out, tol=mul_mat_error(kernel, sizes) + (image.tol * top(kernel.array)) * n)


def _pool_2d(a: Value, kernel: Any, *, stride: Any = None, padding: Any = 0, mode: str = "avg") -> Expected:
    size = ref.pair(kernel)
    out = ref.pool_2d(f64(a), size, size if stride is None else ref.pair(stride), ref.pair(padding), mode)
    return Expected(out, tol=a.tol + 1e-6 * (1 + top(a.array)) * size[0] * size[1])


def _pad(a: Value, *widths: Any, mode: str = "zero") -> Expected:
    return Expected(ref.pad(a.array, widths, mode), tol=a.tol)


def _interpolate(a: Value, width: int, height: int, mode: str = "nearest", *, align_corners: bool = False,
                 antialias: bool = False) -> Expected:  # fmt: skip
    out = ref.interpolate(
        f64(a), int(width), int(height), mode, align_corners=bool(align_corners), antialias=bool(antialias)
    )
    return Expected(out, tol=2.3 * a.tol + (0 if mode == "nearest" else 2e-5 * (1 + top(a.array))))


def _rope_multi(x: Value, positions: Value, n_dims: int, sections: Any, *, factors: Value | None = None,
                **options: Any) -> Expected:  # fmt: skip
    options = {k: v if isinstance(v, str) else float(v) for k, v in options.items()}
    divide = None if factors is None else f64(factors)
    sizes = [int(s) for s in np.atleast_1d(sections)]
    out = ref.rope_multi(f64(x), positions.array, int(n_dims), sizes, factors=divide, **options)
    return rope_error(x, positions, out, divide, options)


EXPECT = {
    "im2col": _im2col, "conv_2d": _conv_2d, "pool_2d": _pool_2d, "pad": _pad, "interpolate": _interpolate,
    "rope_multi": _rope_multi,
}  # fmt: skip
