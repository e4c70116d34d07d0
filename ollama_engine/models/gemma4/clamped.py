"""Linear maps whose input and output are clamped to what was seen in training, as those of the small models' tower.

llama.cpp's files have a tensor of one number for each limit, Ollama's first files have all limits in one:
`v.clamp_data`, 4 numbers for each map of each layer, and 4 for the projection to the text model.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ollama_engine import nn
from ollama_engine.errors import ModelFormatError
from ollama_engine.ml import ops
from ollama_engine.ml.graph.tensor import Tensor
from ollama_engine.nn import vision

__all__ = ["ClampedLinear"]

PACKED = "v.clamp_data"
PACKED_ORDER = ("attn_q", "attn_k", "attn_v", "attn_out", "ffn_gate", "ffn_up", "ffn_down")
LIMITS = {"input_min": -math.inf, "input_max": math.inf, "output_min": -math.inf, "output_max": math.inf}


class ClampedLinear(nn.Linear):
    """A linear map without bias, and its limits where the file has some."""

    limits: tuple[float, float, float, float]
    """Least and largest number of the input, then of the output."""

    def bind(self, scope: nn.Scope) -> Any:
        """A bound copy; see Weight.bind. Raises ModelFormatError for packed limits of another number."""
        bound = super().bind(scope)
        bound.limits = self._packed(scope) or tuple(
            nn.Scalar(f"{self.name}.{limit}", default=default).bind(scope).value for limit, default in LIMITS.items()
        )
        return bound

    def _packed(self, scope: nn.Scope) -> tuple[float, ...] | None:
        """The limits among those of all maps; None where there are none."""
        packed = scope.weights.get(PACKED)
        if packed is None:
            return None
        n_maps = len(PACKED_ORDER)
        values, expected = packed.numpy().ravel(), 4 * (n_maps * scope.options.n_layer + 1)
        if len(values) != expected:
            raise ModelFormatError(f"tensor {PACKED} has {len(values)} numbers; expected {expected}, 4 for each map")
        scope.used.add(PACKED)
        inside = self.name in PACKED_ORDER
        row = n_maps * int(scope.prefix.split(".")[2]) + PACKED_ORDER.index(self.name) if inside else -1
        limits = values.astype(np.float64).reshape(-1, 4)[row]
        # Ollama's converter leaves 0 for a map that the checkpoint has no limits for.
        return tuple(limits.tolist()) if limits.any() else None

    def __call__(self, x: Tensor) -> Tensor:
        return _clamped(vision.wide_product(self.tensor, _clamped(x, *self.limits[:2])), *self.limits[2:])


def _clamped(x: Tensor, least: float, largest: float) -> Tensor:
    return x if (least, largest) == (-math.inf, math.inf) else ops.clamp(x, least, largest)
