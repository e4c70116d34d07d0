# The other functions of this module take ggml's pointers.
from typing import SupportsFloat

from ollama_engine.ml.graph.tensor import Tensor

SOFTCAPS: tuple[float, float]
CACHE_TYPES: str

def read_softcap(value: SupportsFloat, op: str) -> float: ...
def lies_on_cpu(weight: Tensor) -> bool: ...
def on_cpu_alone(x: Tensor) -> bool: ...
