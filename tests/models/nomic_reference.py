"""Nomic Embed Text 2 in torch, for `encoder_reference`: transformers has its dense layers (Jina 3), and no experts.

Source: modeling_hf_nomic_bert.py of the published model: probabilities of all experts, the best two as they are, and
one bias behind their sum.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tests.models.encoder_reference import EncoderReference
from tests.models.encoders import SIZES, Case
from tests.support.tiny import Weights

USED = 2


class NomicMoeReference(EncoderReference):
    """Made of a model of transformers without experts, whose feed-forward blocks are replaced."""

    def __init__(self, case: Case, folder: Path) -> None:
        super().__init__(case, folder / "dense")
        self.config = _config(self.config, case)
        self.shapes = _shapes(self.shapes, case)
        self.weights = case.weights(self.shapes)
        self.folder = case.write(folder / "source", self.config, self.weights)
        self._load(self.weights)

    def _load(self, weights: Weights) -> None:
        """Put the weights, as they are published, into the model, and experts into every other layer."""
        import torch  # noqa: PLC0415 (the goldens are checked without torch)

        state = {}
        for name, values in weights.items():
            if self._case.dtype == "BF16":
                values = (values.view(np.uint32) & 0xFFFF0000).view(np.float32)  # noqa: PLW2901 (as they are written)
            tensor = torch.from_numpy(np.ascontiguousarray(values))
            target = name.replace("emb_ln.", "embeddings.LayerNorm.").replace("encoder.layers.", "layers.")
            target = target.replace("attn.out_proj", "self_attn.o_proj").replace("norm1", "post_attention_layernorm")
            target = target.replace("norm2", "post_mlp_layernorm")
            if "attn.Wqkv" in target:
                for part, rows in zip("qkv", tensor.chunk(3), strict=True):
                    state[target.replace("attn.Wqkv", f"self_attn.{part}_proj")] = rows
            else:
                state[target] = tensor
        for i, layer in enumerate(self._model.layers):
            if i % 2:
                parts = {name: state.pop(f"layers.{i}.mlp.{name}") for name in _expert_shapes(self._case)}
                layer.mlp = _experts(parts, self._case.n_expert)
        missing, unexpected = self._model.load_state_dict(state, strict=False)
        assert not unexpected
        assert all(name.startswith("pooler.") for name in missing)


def _experts(parts: Mapping[str, Any], n_expert: int) -> Any:
    import torch  # noqa: PLC0415

    class Experts(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            probabilities = (x @ parts["router.layer.weight"].T).softmax(-1)
            chosen = probabilities.topk(USED, dim=-1)
            weights = torch.zeros_like(probabilities).scatter(-1, chosen.indices, chosen.values)
            into, out = (parts[f"experts.mlp.w{k}"].reshape(n_expert, -1, x.shape[-1]) for k in (1, 2))
            hidden = torch.nn.functional.gelu(torch.einsum("...d,efd->...ef", x, into))
            each = torch.einsum("...ef,efd->...ed", hidden, out)
            return (weights[..., None] * each).sum(-2) + parts["experts.bias"]

    return Experts()


def _expert_shapes(case: Case) -> dict[str, list[int]]:
    n_embd, n_ff = SIZES["hidden_size"], SIZES["intermediate_size"]
    return {
        "router.layer.weight": [case.n_expert, n_embd], "experts.mlp.w1": [case.n_expert * n_ff, n_embd],
        "experts.mlp.w2": [case.n_expert * n_ff, n_embd], "experts.bias": [n_embd],
    }  # fmt: skip


def _shapes(dense: Mapping[str, list[int]], case: Case) -> dict[str, list[int]]:
    """By the names that Nomic publishes."""
    shapes = {}
    for name, shape in dense.items():
        found = re.match(r"encoder\.layers\.(\d+)\.(mlp|mixer)\.", name)
        if found and found[2] == "mlp" and int(found[1]) % 2:
            before = f"encoder.layers.{found[1]}.mlp."
            shapes |= {before + part: size for part, size in _expert_shapes(case).items()}
        elif not name.startswith("pooler."):
            shapes[name.replace(".mixer.", ".attn.")] = list(shape)
    return shapes


def _config(dense: Mapping[str, Any], case: Case) -> dict[str, Any]:
    """As Nomic publishes it, in GPT-2's names."""
    return json.loads(json.dumps({
        "architectures": ["NomicBertModel"], "model_type": "nomic_bert", "vocab_size": dense["vocab_size"],
        "n_embd": dense["hidden_size"], "n_head": dense["num_attention_heads"], "n_layer": dense["num_hidden_layers"],
        "n_inner": dense["intermediate_size"], "n_positions": dense["max_position_embeddings"],
        "layer_norm_epsilon": dense["layer_norm_eps"], "activation_function": "gelu", "type_vocab_size": 1,
        "rotary_emb_base": dense["rope_parameters"]["rope_theta"], "rotary_emb_fraction": 1.0, "prenorm": False,
        "rotary_emb_interleaved": False, "moe_every_n_layers": 2, "moe_top_k": USED, "num_experts": case.n_expert,
        "moe_normalize_expert_weights": False, "expert_choice_router": False, "num_shared_experts": 0,
        "pad_token_id": 1,
    }))  # fmt: skip
