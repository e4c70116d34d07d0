from ollama_engine.ml.graph.tensor import Tensor as Tensor
