from typing_extensions import SupportsFloat, SupportsIndex

from ollama_engine.ml.tensor import Tensor

def mul_mat(a: Tensor, b: Tensor, precise: bool = False) -> Tensor: ...
def mul_mat_id(experts: Tensor, b: Tensor, ids: Tensor) -> Tensor: ...
def rope(
    x: Tensor,
    positions: Tensor,
    n_dims: SupportsIndex,
    *,
    mode: str = "norm",
    factors: Tensor | None = None,
    freq_base: SupportsFloat = 10000.0,
    freq_scale: SupportsFloat = 1.0,
    n_ctx_orig: SupportsIndex = 0,
    ext_factor: SupportsFloat = 0.0,
    attn_factor: SupportsFloat = 1.0,
    beta_fast: SupportsFloat = 32.0,
    beta_slow: SupportsFloat = 1.0,
) -> Tensor: ...
def softmax(
    a: Tensor, mask: Tensor | None = None, scale: SupportsFloat = 1.0, sinks: Tensor | None = None
) -> Tensor: ...
def flash_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    scale: SupportsFloat = 1.0,
    *,
    softcap: SupportsFloat = 0.0,
    sinks: Tensor | None = None,
) -> Tensor: ...
