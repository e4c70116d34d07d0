"""What `doctor` asks of the layers below. Importing it loads ggml's library, which --help needs not."""

from __future__ import annotations

from ollama_engine.ml.device.device import ggml_version
from ollama_engine.ml.ops.amx import amx_allowed
from ollama_engine.runner.load.kernels import kept_kernels

__all__ = ["amx_allowed", "ggml_version", "kept_kernels"]
