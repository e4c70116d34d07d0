from ollama_engine.ml.graph.tensor import Tensor

def recurrent_instructions() -> tuple[str, ...]: ...
def causal_conv(
    x: Tensor,
    weight: Tensor,
    rows: Tensor,
    bounds: Tensor,
    slots: Tensor,
    states: Tensor | None = None,
    *,
    bias: Tensor | None = None,
    silu: bool = False,
    gated: bool = False,
    instructions: str | None = None,
) -> Tensor: ...
def gated_delta_net(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    rows: Tensor,
    bounds: Tensor,
    slots: Tensor,
    states: Tensor | None = None,
    *,
    grouped: bool = False,
    eps: float | None = None,
    instructions: str | None = None,
) -> Tensor: ...
def ssm_state_size(dim: int, d_state: int, heads: int) -> int: ...
def ssm_scan(
    x: Tensor,
    dt: Tensor,
    a: Tensor,
    b: Tensor,
    c: Tensor,
    rows: Tensor,
    bounds: Tensor,
    slots: Tensor,
    states: Tensor | None = None,
    *,
    d: Tensor | None = None,
    instructions: str | None = None,
) -> Tensor: ...
