from ollama_engine.ml.graph.tensor import Tensor
from ollama_engine.ml.ops.small_batch import SMALL_BATCH_QUANTIZED as SMALL_BATCH_QUANTIZED

def weighted_sum(x: Tensor, weights: Tensor) -> Tensor: ...
def mul_mat_id_small_batch(
    experts: Tensor, b: Tensor, ids: Tensor, instructions: str | None = None, variant: str = "spread"
) -> Tensor: ...
