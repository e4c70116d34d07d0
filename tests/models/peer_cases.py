"""Small models of every architecture that llama.cpp knows too, wide enough for K-quants, and what it says of them.

A golden holds, for each case, what transformers writes of it (config.json and shapes), llama.cpp's perplexity of TEXT
for four files, and a hash of the tensors that llama-quantize makes. `make_peer_goldens` writes them.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.peer_tools import tool
from ollama_engine.convert import convert_model, quantize_model
from tests.models import families
from tests.models.families import Family
from tests.models.published import checksum

GOLDENS = Path(__file__).with_name("peer_goldens.json")

PRESETS = ("Q8_0", "Q4_K_M")
FILES = ("f32", "bf16", *PRESETS)
N_CTX = 128
TEXT = (Path(__file__).parents[2] / "LICENSE").read_text(encoding="utf-8")[:700]
"""5 chunks of N_CTX in the tiny vocabulary, in which nearly every character is a token."""
TOLERANCE = {"f32": 2e-5, "bf16": 5e-3, "Q8_0": 5e-3, "Q4_K_M": 5e-3}
"""Largest relative difference of the perplexity. With f32 weights 7e-6 is found at most. With others ggml
rounds the activations too, and kernels that add in another order round some of them otherwise: 1e-3 is found."""
LOG_WRITER = Path(__file__).with_name("peer_log.c")

SIZES = {
    "hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 64,
}  # fmt: skip
_EXPERTS = {"moe_intermediate_size": 256, "num_experts": 4, "num_experts_per_tok": 2}
_SHARED = {**_EXPERTS, "shared_expert_intermediate_size": 256}
_PERIOD = {"layer_types": ["sliding_attention", "full_attention"]}
_SHARING = {"num_hidden_layers": 4, "num_kv_shared_layers": 2, "layer_types": [*_PERIOD["layer_types"]] * 2}

_ROPE = {"rope_type": "default", "rope_theta": 500000.0}
_YARN = {
    "rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 32, "attention_factor": 1.2079441541679836,
}  # fmt: skip
_OLMO3 = {"sliding_attention": _ROPE, "full_attention": {**_ROPE, **_YARN}}


def _like(name: str, embeddings: float = 0.3, **settings: Any) -> Family:
    """A case of `families` in the sizes of here."""
    found = families.case(name)
    return replace(found, embeddings=embeddings, settings={**found.settings, **SIZES, **settings})


def _wide(name: str, stem: str, **settings: Any) -> Family:
    return Family(name, stem, {**SIZES, **settings})


_DELTA = {"num_hidden_layers": 4, "linear_key_head_dim": 32, "linear_value_head_dim": 32, "linear_num_value_heads": 4}
_SSM = {
    "num_hidden_layers": None, "mamba_num_heads": 4, "mamba_head_dim": 64, "ssm_state_size": 32, "use_conv_bias": True,
}  # fmt: skip

# One epsilon, as llama.cpp has; that of the latent vectors' norms is 1e-6 in transformers.
_LATENT = {
    "head_dim": None, "num_key_value_heads": 4, "kv_lora_rank": 256, "q_lora_rank": 256, "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 32, "v_head_dim": 64, "rms_norm_eps": 1e-6, "moe_intermediate_size": 256,
    "n_routed_experts": 8, "num_experts_per_tok": 2,
}  # fmt: skip

# What llama.cpp lacks is left out: convolutions without a bias, tied forms of some, windows (phi3, starcoder2), scales
# of attention other than those of the published sizes (gemma), a ramp of YaRN that is not rounded (gpt-oss), a base of
# local layers (olmo3), and groups of experts that are judged by one of them (deepseek-v2).
CASES = (
    _wide("llama", "Llama"),
    _wide("mistral", "Mistral", sliding_window=None),
    _wide("mixtral", "Mixtral", num_local_experts=4, num_experts_per_tok=2, sliding_window=None),
    _like("qwen2"),
    _like("qwen3"),
    _like("qwen2moe", **_SHARED, tie_word_embeddings=False),
    _like("qwen3moe", **_EXPERTS, tie_word_embeddings=False),
    _like("gpt-oss", num_local_experts=4, num_experts_per_tok=2, tie_word_embeddings=False, rope_parameters=_ROPE),
    _like("phi3", sliding_window=None, tie_word_embeddings=False),
    _like("olmo2", tie_word_embeddings=False),
    _like(
        "olmo3-bf16",
        num_hidden_layers=4,
        layer_types=[*["sliding_attention"] * 3, "full_attention"],
        rope_parameters=_OLMO3,
    ),
    _like("gemma2", 0.02, query_pre_attn_scalar=64),
    _like("gemma3", 0.02, query_pre_attn_scalar=64, **_PERIOD),
    _like("gemma4-experts", 0.02, **_EXPERTS, **_PERIOD, top_k_experts=2, global_head_dim=128),
    _like("gemma4-small", 0.02, **_SHARING, global_head_dim=128, hidden_size_per_layer_input=256),
    _like("command-r"),
    _like("cohere2", **_PERIOD),
    _like("starcoder2", 0.02, use_bias=True, sliding_window=None),
    _like("smollm3", num_hidden_layers=4, tie_word_embeddings=False),
    _like("arcee"),
    _like("seed_oss"),
    _like("nemotron"),
    _like("apertus"),
    # Its windows are of the model with 64 layers only.
    _like("exaone4", num_hidden_layers=2, sliding_window=None, layer_types=["full_attention"] * 2),
    _like("glm4"),
    _like("glm4moe", n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=256),
    _like("granite", head_dim=None),
    _like("granitemoe", num_local_experts=4, num_experts_per_tok=2, head_dim=None),
    _like("hunyuan-dense"),
    _like("hunyuan-moe", num_experts=4, moe_topk=2),
    _like("ernie4_5"),
    _like("ernie4_5-moe", moe_num_experts=4, moe_k=2, moe_intermediate_size=256),
    _like("minimax-m2", num_local_experts=4, num_experts_per_tok=2),
    _like(
        "cohere2moe",
        num_experts=4,
        num_experts_per_tok=2,
        prefix_dense_intermediate_size=256,
        mlp_layer_types=["dense", "sparse"],
        layer_types=["full_attention", "sliding_attention"],
    ),
    _like("muse-glimmer", num_hidden_layers=4),
    _like("qwen35", 0.02, **_DELTA, tie_word_embeddings=True),
    _like("qwen35moe", 0.02, **_DELTA, **_SHARED),
    _like("qwen3next", 0.02, **_DELTA, **_SHARED),
    # llama.cpp has one epsilon; that of the latent vector's norm is 1e-6 in transformers.
    _like(
        "kimi-linear",
        0.1,
        **_EXPERTS,
        num_experts_per_token=2,
        num_hidden_layers=4,
        num_key_value_heads=4,
        head_dim=None,
        kv_lora_rank=256,
        qk_nope_head_dim=32,
        v_head_dim=64,
        linear_head_dim=64,
        rms_norm_eps=1e-6,
    ),
    _like("deepseek-v2", 0.1, **_LATENT, topk_method="greedy"),
    _like("deepseek-v3-bf16", 0.1, **_LATENT),
    _like("glm-4.7-flash", 0.1, **_LATENT, mlp_layer_types=["dense", "sparse"]),
    _like("mistral4", 0.02, **_LATENT),
    _like("lfm2", num_hidden_layers=4),
    _like("lfm2moe", **_EXPERTS, num_hidden_layers=4, num_dense_layers=1),
    _like("nemotron_h", **_SSM),
    _like(
        "nemotron_h_moe", **_SSM, n_routed_experts=4, moe_intermediate_size=256, moe_shared_expert_intermediate_size=256
    ),
    _like(
        "granitehybrid",
        0.02,
        mamba_n_heads=8,
        mamba_d_head=64,
        mamba_d_state=32,
        mamba_conv_bias=True,
        shared_intermediate_size=256,
        num_hidden_layers=3,
    ),
    _like("falcon-h1", mamba_d_ssm=256, mamba_d_head=64, mamba_d_state=32, mamba_conv_bias=True),
    _like("mamba2", num_heads=8, head_dim=64, state_size=32, intermediate_size=None, use_conv_bias=True),
    # Chunks and temperatures of the published size: llama.cpp has no keys for them.
    _like(
        "llama4-scout",
        num_hidden_layers=4,
        intermediate_size_mlp=256,
        interleave_moe_layer_step=2,
        attention_chunk_size=8192,
        floor_scale=8192,
    ),
)


def write_source(case: Family, golden: dict[str, Any], folder: Path) -> Path:
    """The folder of a case as it is published; no torch is needed."""
    weights = case.weights(golden["shapes"])
    assert checksum(weights) == golden["checksum"], "numpy makes other random weights than for the golden"
    return families.write_folder(folder / "source", golden["config"], weights, case.dtype)


def write_files(source: Path, folder: Path) -> dict[str, Path]:
    """The files that are compared, {a name of FILES: path}; the quantized ones are made of the f32 file."""
    paths = {kind: folder / f"{kind}.gguf" for kind in FILES}
    for kind in ("f32", "bf16"):
        convert_model(source, paths[kind], kind)
    for preset in PRESETS:
        quantize_model(paths["f32"], paths[preset], preset, threads=1)
    return paths


def peer_perplexity(model: Path) -> float:
    """The perplexity that llama-perplexity says, with nothing rounded that need not be."""
    text = model.with_name("text.txt")
    text.write_text(TEXT, encoding="utf-8")
    command = [tool("llama-perplexity"), "-m", model, "-f", text, "-c", N_CTX, "-b", N_CTX, "-t", 1, "-ngl", 0,
               "-fa", "off", "-ctk", "f32", "-ctv", "f32", "--no-repack", "--no-warmup"]  # fmt: skip
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False, timeout=60,
                          env={**os.environ, "LD_PRELOAD": str(_log_writer(model.parent))})  # fmt: skip
    found = re.search(r"Final estimate: PPL = ([\d.]+)", done.stdout + done.stderr)
    assert found, f"{' '.join(map(str, command))}\n{done.stderr[-2000:]}"
    return float(found[1])


def _log_writer(folder: Path) -> Path:
    """peer_log.c, compiled into the folder. Linux preloads it; where it is not, the last line may be lost."""
    library = folder / "peer_log.so"
    if not library.exists():
        subprocess.run(["cc", "-shared", "-fPIC", str(LOG_WRITER), "-o", str(library)], check=True)
    return library


def load() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(GOLDENS.read_text(encoding="utf-8"))
    return found


def save(goldens: dict[str, Any]) -> None:
    """One line for each case."""
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(golden)}" for name, golden in goldens.items())
    GOLDENS.write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")
