from typing_extensions import SupportsFloat, SupportsIndex

from ollama_engine.ml.device.device_info import Device
from ollama_engine.ml.graph.tensor import Tensor

def mul_mat(a: Tensor, b: Tensor, precise: bool = False) -> Tensor: ...
def mul_mat_id(experts: Tensor, b: Tensor, ids: Tensor) -> Tensor: ...
def add_id(a: Tensor, rows: Tensor, ids: Tensor) -> Tensor: ...
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
def supports_flash_attention(device: Device, key_dim: SupportsIndex, value_dim: SupportsIndex, dtype: str) -> bool: ...
