from ollama_engine.ml.tensor import Tensor as Tensor
