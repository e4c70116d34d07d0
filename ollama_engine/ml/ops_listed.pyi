from typing_extensions import SupportsFloat

from ollama_engine.ml.tensor import Tensor

def listed_attention_instructions(dtype: str) -> tuple[str, ...]: ...
def listed_attention_chosen(dtype: str) -> bool: ...
def listed_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    parts: Tensor,
    cells: Tensor,
    scale: SupportsFloat = 1.0,
    *,
    softcap: SupportsFloat = 0.0,
    sinks: Tensor | None = None,
    instructions: str | None = None,
) -> Tensor: ...
