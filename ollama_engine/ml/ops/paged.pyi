from typing_extensions import SupportsFloat

from ollama_engine.ml.graph.tensor import Tensor

def paged_attention_instructions(dtype: str) -> tuple[str, ...]: ...
def paged_attention_chosen(dtype: str) -> bool: ...
def paged_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    parts: Tensor,
    cells: Tensor,
    scale: SupportsFloat = 1.0,
    *,
    softcap: SupportsFloat = 0.0,
    sinks: Tensor | None = None,
    phases: Tensor | None = None,
    instructions: str | None = None,
) -> Tensor: ...
