from collections.abc import Iterable

from typing_extensions import SupportsIndex

from ollama_engine.ml.graph.tensor import Tensor

_Pair = SupportsIndex | Iterable[SupportsIndex]

def im2col(kernel: Tensor, image: Tensor, *, stride: _Pair = 1, padding: _Pair = 0, dilation: _Pair = 1) -> Tensor: ...
def conv_2d(kernel: Tensor, image: Tensor, *, stride: _Pair = 1, padding: _Pair = 0, dilation: _Pair = 1) -> Tensor: ...
def pool_2d(
    a: Tensor, kernel: _Pair, *, stride: _Pair | None = None, padding: _Pair = 0, mode: str = "avg"
) -> Tensor: ...
def pad(a: Tensor, *widths: Iterable[SupportsIndex], mode: str = "zero") -> Tensor: ...
def interpolate(
    a: Tensor,
    width: SupportsIndex,
    height: SupportsIndex,
    mode: str = "nearest",
    *,
    align_corners: bool = False,
    antialias: bool = False,
) -> Tensor: ...
