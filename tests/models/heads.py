"""Heads that predict tokens further ahead, for the tiny models of `families`: random ones, and ones that agree."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ollama_engine.convert import convert_model
from tests.models import families
from tests.models.families import Family, random_weight
from tests.support.tiny import Weights

__all__ = ["agreeing", "converted", "head_of", "own_tensors", "with_head"]

N_EMBD = families.SIZES["hidden_size"]
QWEN = {"fc": "eh_proj", "pre_fc_norm_embedding": "enorm", "pre_fc_norm_hidden": "hnorm", "norm": "shared_head_norm"}
NEMOTRON = {
    "layers.0.eh_proj": "eh_proj", "layers.0.enorm": "enorm", "layers.0.hnorm": "hnorm",
    "layers.1.final_layernorm": "shared_head_norm",
}  # fmt: skip
DEEPSEEK = {"eh_proj": "eh_proj", "enorm": "enorm", "hnorm": "hnorm", "shared_head.norm": "shared_head_norm"}
LAST = ("o_proj.weight", "out_proj.weight", "down_proj.weight", "experts.down_proj")
"""The last products of a block's parts, which add to the stream."""


def own_tensors(case: Family) -> tuple[str, dict[str, str]]:
    """What the names of a head begin with in a checkpoint, and those of its own tensors, with their kinds."""
    if case.stem in ("DeepseekV3", "Glm4MoeLite", "Glm4Moe"):
        return "model.layers.3.", DEEPSEEK  # behind the blocks that compute
    return "mtp.", NEMOTRON if case.stem.startswith("Nemotron") else QWEN


def attending(case: Family, weights: Weights) -> str:
    """What the names of the last block with attention, and with experts if there are any, begin with."""
    named = [name for name in weights if ".self_attn." in name]
    return named[-1][: named[-1].index("self_attn.")]


def head_of(case: Family, weights: Weights, shift: float = 0.25) -> Weights:
    """The tensors of a head as they are published: a block's, all moved by `shift`, and four of its own."""
    prefix, own = own_tensors(case)
    if case.stem.startswith("Nemotron"):
        copied = {"backbone.layers.2.": "mtp.layers.0.", "backbone.layers.1.": "mtp.layers.1."}
    else:
        copied = {attending(case, weights): "mtp.layers.0." if prefix == "mtp." else prefix}
    head = {
        name.replace(old, new): values + np.float32(shift)
        for old, new in copied.items() for name, values in weights.items() if name.startswith(old)
    }  # fmt: skip
    for name, kind in own.items():
        shape = (N_EMBD, 2 * N_EMBD) if kind == "eh_proj" else (N_EMBD,)
        head[f"{prefix}{name}.weight"] = random_weight(name, shape, seed=7, norms=case.norms, embeddings=1.0)
    return head


def with_head(case: Family, shift: float = 0.25) -> Weights:
    """The weights of a case and of a head."""
    weights = families.load(case).weights_of(case, "make_family_goldens")
    return {**weights, **head_of(case, weights, shift)}


def agreeing(case: Family, scale: float = 0.01) -> Weights:
    """The same, where blocks change little of the stream, so that the next token follows from the last one.

    The head knows it: it passes on the token's embedding, and normalizes as the model does.
    """
    weights = with_head(case, 0.0)
    prefix, own = own_tensors(case)
    norm = "model.norm.weight" if "model.norm.weight" in weights else "model.language_model.norm.weight"
    unit = np.full(N_EMBD, case.norms, np.float32)
    made = {
        "eh_proj": np.concatenate([np.eye(N_EMBD), np.zeros((N_EMBD, N_EMBD))], 1).astype(np.float32),
        "enorm": unit, "hnorm": unit, "shared_head_norm": weights[norm],
    }  # fmt: skip
    scaled = {name: values * np.float32(scale) for name, values in weights.items() if name.endswith(LAST)}
    return {**weights, **scaled, **{f"{prefix}{name}.weight": made[kind] for name, kind in own.items()}}


def converted(case: Family, folder: Path, weights: Weights) -> Path:
    """The file of a case with these weights."""
    folder.mkdir(parents=True, exist_ok=True)
    source = families.write_folder(folder / "source", families.load(case).config, weights, case.dtype)
    convert_model(source, folder / "with.gguf", "f32")
    return folder / "with.gguf"
