from typing import SupportsIndex

from ollama_engine.ml.graph.tensor import Tensor

def hadamard(a: Tensor, block: SupportsIndex) -> Tensor: ...
