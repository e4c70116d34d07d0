from collections.abc import Iterable

from typing_extensions import SupportsFloat, SupportsIndex

from ollama_engine.ml.graph.tensor import Tensor

def rope(
    x: Tensor,
    positions: Tensor,
    n_dims: SupportsIndex,
    *,
    mode: str = "norm",
    offset: SupportsIndex = 0,
    factors: Tensor | None = None,
    freq_base: SupportsFloat = 10000.0,
    freq_scale: SupportsFloat = 1.0,
    n_ctx_orig: SupportsIndex = 0,
    ext_factor: SupportsFloat = 0.0,
    attn_factor: SupportsFloat = 1.0,
    beta_fast: SupportsFloat = 32.0,
    beta_slow: SupportsFloat = 1.0,
) -> Tensor: ...
def rope_multi(
    x: Tensor,
    positions: Tensor,
    n_dims: SupportsIndex,
    sections: Iterable[SupportsIndex],
    *,
    mode: str = "sections",
    factors: Tensor | None = None,
    freq_base: SupportsFloat = 10000.0,
    freq_scale: SupportsFloat = 1.0,
    n_ctx_orig: SupportsIndex = 0,
    ext_factor: SupportsFloat = 0.0,
    attn_factor: SupportsFloat = 1.0,
    beta_fast: SupportsFloat = 32.0,
    beta_slow: SupportsFloat = 1.0,
) -> Tensor: ...
