"""Every operation on tensors except `+ - * /`, one function each. Operands are checked before ggml sees them.

A function takes and returns `Tensor`s of one graph and raises ShapeError for operands that ggml cannot compute with. It
only adds a node to the graph; `Context.compute()` computes.
"""

from __future__ import annotations

from ollama_engine.ml.ops.best import best_k
from ollama_engine.ml.ops.experts import await_experts, guess_experts, mul_mat_id_small_batch, weighted_sum
from ollama_engine.ml.ops.hadamard import hadamard
from ollama_engine.ml.ops.image import conv_2d, im2col, interpolate, pad, pool_2d
from ollama_engine.ml.ops.math import (
    argsort,
    clamp,
    clamped_swiglu,
    cos,
    glu,
    l2_norm,
    layer_norm,
    log,
    mean,
    rms_norm,
    scale,
    sin,
    sqr,
    sqrt,
    sum_rows,
    top_k,
    unary,
    xielu,
)
from ollama_engine.ml.ops.nn import add_id, flash_attention, mul_mat, mul_mat_id, softmax
from ollama_engine.ml.ops.paged import paged_attention
from ollama_engine.ml.ops.pointwise import gelu_exact, gelu_tanh, soft_cap
from ollama_engine.ml.ops.recurrent import causal_conv, gated_delta_net, ssm_scan
from ollama_engine.ml.ops.rotary import rope, rope_multi
from ollama_engine.ml.ops.shape import (
    cast,
    concat,
    cont,
    copy,
    get_rows,
    permute,
    repeat,
    reshape,
    set_rows,
    transpose,
    view,
)
from ollama_engine.ml.ops.small_batch import mul_mat_small_batch

__all__ = [
    "add_id",
    "argsort",
    "await_experts",
    "best_k",
    "cast",
    "causal_conv",
    "clamp",
    "clamped_swiglu",
    "concat",
    "cont",
    "conv_2d",
    "copy",
    "cos",
    "flash_attention",
    "gated_delta_net",
    "gelu_exact",
    "gelu_tanh",
    "get_rows",
    "glu",
    "guess_experts",
    "hadamard",
    "im2col",
    "interpolate",
    "l2_norm",
    "layer_norm",
    "log",
    "mean",
    "mul_mat",
    "mul_mat_id",
    "mul_mat_id_small_batch",
    "mul_mat_small_batch",
    "pad",
    "paged_attention",
    "permute",
    "pool_2d",
    "repeat",
    "reshape",
    "rms_norm",
    "rope",
    "rope_multi",
    "scale",
    "set_rows",
    "sin",
    "soft_cap",
    "softmax",
    "sqr",
    "sqrt",
    "ssm_scan",
    "sum_rows",
    "top_k",
    "transpose",
    "unary",
    "view",
    "weighted_sum",
    "xielu",
]
