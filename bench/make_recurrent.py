"""Write a GGUF model with recurrent layers, with the shape of a real one and random weights.

    python bench/make_recurrent.py qwen35 q4_k_m OUT.gguf

For speed measurements, as `make_model` does it for other decoders: qwen35 and qwen35moe (gated delta nets), nemotron-h,
mamba2, granite-hybrid and falcon-h1 (Mamba-2), lfm2 (short convolutions). The pinned llama.cpp loads them, too. Needs
the extra `bench` (the gguf package).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
from gguf import GGMLQuantizationType as QuantType

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for when this file is run as a program

from bench.make_model import vocabulary, write_random
from bench.model_shapes import PRESETS, Dims
from ollama_engine.convert.quant.layout import LayoutFacts, in_file_order, target_types
from ollama_engine.ml.gguf.gguf_file import TensorInfo


@dataclass(frozen=True)
class RecurrentShape:
    """A decoder some of whose layers have a recurrent state; sizes have the meaning of the GGUF keys."""

    name: str
    arch: str
    layers: str
    """A letter for each layer: attention `*`, recurrent `M`, both side by side `+`; in nemotron_h also a feed-forward
    block alone, `-`."""
    n_embd: int
    n_ff: int
    n_head: int
    n_head_kv: int
    head_dim: int
    n_vocab: int
    n_taps: int
    n_heads: int = 0
    """Of a recurrent layer."""
    n_groups: int = 0
    d_state: int = 0
    d_inner: int = 0
    n_expert: int = 0
    """0: one feed-forward block of size n_ff. Otherwise n_ff is the size of one expert, and of a shared one; a token
    uses EXPERTS_USED besides that one."""
    keys: dict[str, Any] = field(default_factory=dict)
    """Metadata of this architecture alone."""

    @property
    def conv_size(self) -> int:
        return self.d_inner + 2 * self.n_groups * self.d_state


EXPERTS_USED = 8

SHAPES = {
    "qwen35": RecurrentShape(
        name="Qwen3.5-0.8B shape", arch="qwen35", layers="MMM*" * 6, n_embd=1024, n_ff=3584, n_head=8, n_head_kv=2,
        head_dim=256, n_vocab=248320, n_taps=4, n_heads=16, n_groups=16, d_state=128, d_inner=2048,
        keys={"full_attention_interval": 4, "rope.dimension_count": 64, "rope.freq_base": 1e7,
              "rope.dimension_sections": [11, 11, 10, 0]},
    ),
    # 40 layers of 256 experts and 248,320 tokens in the whole model.
    "qwen35moe": RecurrentShape(
        name="Qwen3.5-35B-A3B shape, 4 layers of 64 experts", arch="qwen35moe", layers="MMM*", n_embd=2048, n_ff=512,
        n_head=16, n_head_kv=2, head_dim=256, n_vocab=16384, n_taps=4, n_heads=32, n_groups=16, d_state=128,
        d_inner=4096, n_expert=64,
        keys={"full_attention_interval": 4, "rope.dimension_count": 64, "rope.freq_base": 1e7,
              "rope.dimension_sections": [11, 11, 10, 0]},
    ),
    # 56 layers and 131,072 tokens in the whole model, 27 layers of which are recurrent, and 4 attend.
    "nemotron-h": RecurrentShape(
        name="Nemotron-Nano-9B-v2 shape, 8 layers", arch="nemotron_h", layers="M-M-M*M-", n_embd=4480, n_ff=15680,
        n_head=40, n_head_kv=8, head_dim=128, n_vocab=16384, n_taps=4, n_heads=128, n_groups=8, d_state=128,
        d_inner=10240,
    ),
    "lfm2": RecurrentShape(
        name="LFM2-350M shape", arch="lfm2", layers="MM*MM*MM*M*M*M*M", n_embd=1024, n_ff=4608, n_head=16, n_head_kv=8,
        head_dim=64, n_vocab=65536, n_taps=3, keys={"rope.freq_base": 1e6},
    ),
    "mamba2": RecurrentShape(
        name="Mamba-2 780M shape", arch="mamba2", layers="M" * 48, n_embd=1536, n_ff=0, n_head=0, n_head_kv=0,
        head_dim=0, n_vocab=50288, n_taps=4, n_heads=48, n_groups=1, d_state=128, d_inner=3072,
    ),
    "granite-hybrid": RecurrentShape(
        name="Granite-4.0-H-350M shape", arch="granitehybrid", layers="MMMMMMMMMM*MM*MMM*MMMMMMMMM*MMMM", n_embd=768,
        n_ff=2048, n_head=12, n_head_kv=4, head_dim=64, n_vocab=100352, n_taps=4, n_heads=48, n_groups=1, d_state=128,
        d_inner=1536, keys={"embedding_scale": 12.0, "residual_scale": 0.246, "attention.scale": 0.015625,
                            "logit_scale": 3.0, "rope.dimension_count": 64},
    ),
    "falcon-h1": RecurrentShape(
        name="Falcon-H1-0.5B shape", arch="falcon-h1", layers="+" * 36, n_embd=1024, n_ff=2048, n_head=8, n_head_kv=2,
        head_dim=64, n_vocab=32784, n_taps=4, n_heads=24, n_groups=1, d_state=128, d_inner=1536,
        keys={"rope.freq_base": 1e11},
    ),
}  # fmt: skip


DELTA_NETS = ("qwen35", "qwen35moe")
FFN_NORM = {**dict.fromkeys(DELTA_NETS, "post_attention_norm.weight"), "falcon-h1": "ffn_norm"}


def tensor_shapes(shape: RecurrentShape) -> Iterator[tuple[str, Dims]]:
    """(name, numpy shape) in the order of the file; the output is tied to the embedding."""
    yield "token_embd.weight", (shape.n_vocab, shape.n_embd)
    for i, kind in enumerate(shape.layers):
        for name, dims in layer_tensors(shape, kind):
            yield f"blk.{i}.{name}", dims
    final = "token_embd_norm" if shape.arch == "lfm2" else "output_norm"
    yield f"{final}.weight", (shape.n_embd,)


def layer_tensors(shape: RecurrentShape, kind: str) -> Iterator[tuple[str, Dims]]:
    yield "attn_norm.weight", (shape.n_embd,)
    if kind in "*+":
        yield from _attention(shape)
    if kind in "M+":
        yield from RECURRENT.get(shape.arch, _mamba2)(shape)
    if kind == "-":
        yield "ffn_up.weight", (shape.n_ff, shape.n_embd)
        yield "ffn_down.weight", (shape.n_embd, shape.n_ff)
    if not shape.n_ff or shape.arch == "nemotron_h":
        return
    yield FFN_NORM.get(shape.arch, "ffn_norm.weight"), (shape.n_embd,)
    if shape.n_expert:
        yield "ffn_gate_inp.weight", (shape.n_expert, shape.n_embd)
        yield from _gated(shape, "_exps", shape.n_expert)
        yield "ffn_gate_inp_shexp.weight", (shape.n_embd,)
    yield from _gated(shape, "_shexp" if shape.n_expert else "")


def _gated(shape: RecurrentShape, suffix: str, *experts: int) -> Iterator[tuple[str, Dims]]:
    for name in ("gate", "up"):
        yield f"ffn_{name}{suffix}.weight", (*experts, shape.n_ff, shape.n_embd)
    yield f"ffn_down{suffix}.weight", (*experts, shape.n_embd, shape.n_ff)


def _attention(shape: RecurrentShape) -> Iterator[tuple[str, Dims]]:
    q, kv = shape.n_head * shape.head_dim, shape.n_head_kv * shape.head_dim
    yield "attn_q.weight", (2 * q if shape.arch in DELTA_NETS else q, shape.n_embd)  # behind each query its gate
    yield "attn_k.weight", (kv, shape.n_embd)
    yield "attn_v.weight", (kv, shape.n_embd)
    yield "attn_output.weight", (shape.n_embd, q)
    if shape.arch in (*DELTA_NETS, "lfm2"):
        yield "attn_q_norm.weight", (shape.head_dim,)
        yield "attn_k_norm.weight", (shape.head_dim,)


def _delta_net(shape: RecurrentShape) -> Iterator[tuple[str, Dims]]:
    yield "attn_qkv.weight", (shape.conv_size, shape.n_embd)
    yield "attn_gate.weight", (shape.d_inner, shape.n_embd)
    yield "ssm_conv1d.weight", (shape.conv_size, shape.n_taps)
    yield "ssm_dt.bias", (shape.n_heads,)
    yield "ssm_a", (shape.n_heads,)
    yield "ssm_beta.weight", (shape.n_heads, shape.n_embd)
    yield "ssm_alpha.weight", (shape.n_heads, shape.n_embd)
    yield "ssm_norm.weight", (shape.d_inner // shape.n_heads,)
    yield "ssm_out.weight", (shape.n_embd, shape.d_inner)


def _mamba2(shape: RecurrentShape) -> Iterator[tuple[str, Dims]]:
    yield "ssm_in.weight", (shape.d_inner + shape.conv_size + shape.n_heads, shape.n_embd)
    yield "ssm_conv1d.weight", (shape.conv_size, shape.n_taps)
    yield "ssm_conv1d.bias", (shape.conv_size,)
    yield "ssm_dt.bias", (shape.n_heads,)
    yield "ssm_a", (shape.n_heads, 1)
    yield "ssm_d", (shape.n_heads, 1)
    if shape.arch != "falcon-h1":
        yield "ssm_norm.weight", (shape.n_groups, shape.d_inner // shape.n_groups)
    yield "ssm_out.weight", (shape.n_embd, shape.d_inner)


def _short_conv(shape: RecurrentShape) -> Iterator[tuple[str, Dims]]:
    yield "shortconv.in_proj.weight", (3 * shape.n_embd, shape.n_embd)
    yield "shortconv.conv.weight", (shape.n_embd, shape.n_taps)
    yield "shortconv.out_proj.weight", (shape.n_embd, shape.n_embd)


RECURRENT = {"qwen35": _delta_net, "qwen35moe": _delta_net, "lfm2": _short_conv}
"""What is not Mamba-2."""


def tensor_types(preset: str, shape: RecurrentShape) -> dict[str, QuantType]:
    """The type that llama.cpp's preset gives to each tensor."""
    tensors = [TensorInfo(name, "f32", dims[::-1], 0, 0, 0) for name, dims in tensor_shapes(shape)]
    facts = LayoutFacts(shape.arch, len(shape.layers), shape.n_head // max(1, shape.n_head_kv), shape.n_expert, False)
    types = target_types(in_file_order(tensors), PRESETS[preset], facts, has_imatrix=False)
    return {name: QuantType[dtype.upper()] for name, dtype in types.items()}


def add_metadata(writer: gguf.GGUFWriter, shape: RecurrentShape, preset: str) -> None:
    writer.add_name(f"random weights, {shape.name}")
    writer.add_file_type(PRESETS[preset].file_type)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    kinds = shape.layers
    each = shape.arch not in DELTA_NETS  # a number for each layer
    values: dict[str, Any] = {
        "vocab_size": shape.n_vocab, "context_length": 32768, "embedding_length": shape.n_embd,
        "block_count": len(kinds), "attention.head_count": shape.n_head,
        "attention.head_count_kv": [shape.n_head_kv * (kind in "*+") for kind in kinds] if each else shape.n_head_kv,
        "feed_forward_length": [shape.n_ff * (kind == "-") for kind in kinds] if "-" in kinds else shape.n_ff,
        "attention.layer_norm_rms_epsilon": 1e-6, "attention.layer_norm_epsilon": 1e-6, **shape.keys,
    }  # fmt: skip
    if shape.n_head:
        values |= {"attention.key_length": shape.head_dim, "attention.value_length": shape.head_dim}
    if shape.n_expert:
        values |= {
            "expert_count": shape.n_expert, "expert_used_count": EXPERTS_USED,
            "expert_feed_forward_length": shape.n_ff, "expert_shared_feed_forward_length": shape.n_ff,
        }  # fmt: skip
    if shape.d_state:
        values |= {
            "ssm.conv_kernel": shape.n_taps, "ssm.inner_size": shape.d_inner, "ssm.state_size": shape.d_state,
            "ssm.time_step_rank": shape.n_heads, "ssm.group_count": shape.n_groups,
        }  # fmt: skip
    else:
        values["shortconv.l_cache"] = shape.n_taps
    for key, value in values.items():
        add = {int: writer.add_uint32, float: writer.add_float32, list: writer.add_array}[type(value)]
        add(f"{shape.arch}.{key}", value)
    tokens, merges = vocabulary(shape.n_vocab - 2)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("llama-bpe")
    writer.add_token_list([*tokens, "<|bos|>", "<|eos|>"])
    writer.add_token_types([gguf.TokenType.NORMAL] * len(tokens) + [gguf.TokenType.CONTROL] * 2)
    writer.add_token_merges(merges)
    writer.add_bos_token_id(len(tokens))
    writer.add_eos_token_id(len(tokens) + 1)


def write_recurrent(path: str, shape: RecurrentShape, preset: str, *, seed: int = 0) -> None:
    """Write the whole file; the same arguments give the same bytes."""
    writer = gguf.GGUFWriter(path, shape.arch)
    add_metadata(writer, shape, preset)
    kinds = tensor_types(preset, shape)
    write_random(writer, tensor_shapes(shape), lambda name, dims: kinds[name], seed=seed)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Write a GGUF model with recurrent layers and random weights.")
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("type", type=str.lower, choices=PRESETS)
    parser.add_argument("out", metavar="OUT.gguf")
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args(arguments)
    write_recurrent(chosen.out, SHAPES[chosen.shape], chosen.type, seed=chosen.seed)


if __name__ == "__main__":
    main()
