"""EAGLE-3 heads in both published forms: for models of several kinds, with each option that they compute by."""

from __future__ import annotations

from tests.models.eagle_heads import Case
from tests.models.families import LLAMA3, N_VOCAB

_QWEN3 = {"model_type": "qwen3"}

CASES = (
    Case("eagle3-llama", "llama", outer={"norm_before_residual": True}, blocks=(1, 2, 2)),
    Case("eagle3-authors", "llama-bf16", form="authors", dtype="BF16", blocks=(1, 1, 2)),
    Case("eagle3-llama3", "llama3-factors", {"rope_parameters": LLAMA3}, own_embeddings=True, n_draft=N_VOCAB),
    Case("eagle3-qwen3", "qwen3", _QWEN3, {"norm_before_fc": True, "norm_before_residual": True}, own_embeddings=True),
    Case("eagle3-hybrid", "qwen35", blocks=(2, 3, 4)),
    Case("eagle3-gemma4", "gemma4-small"),
    Case("eagle3-norm-output", "llama", outer={"norm_before_fc": True, "norm_output": True}),
    Case("eagle3.1", "llama", outer={"fc_norm": True, "norm_output": True, "norm_before_residual": True}),
    Case("eagle3-two-blocks", "qwen3", {**_QWEN3, "num_hidden_layers": 2}, {"fc_norm": True}, blocks=(1, 2, 2, 1)),
)
