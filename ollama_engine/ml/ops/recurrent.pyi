from ollama_engine.ml.graph.tensor import Tensor

def causal_conv(
    x: Tensor, weight: Tensor, rows: Tensor, bounds: Tensor, slots: Tensor, states: Tensor | None = None
) -> Tensor: ...
