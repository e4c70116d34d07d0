from typing import SupportsIndex

from ollama_engine.ml.device.device_info import Device
from ollama_engine.ml.graph.tensor import Tensor

def best_k(a: Tensor, k: SupportsIndex) -> Tensor: ...
def supports_best_k(device: Device, n: SupportsIndex, k: SupportsIndex) -> bool: ...
