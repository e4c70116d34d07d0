"""Tensors and keys that many decoders declare alike, in the names of most checkpoints since Llama."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from ollama_engine.convert.architecture import (
    Architecture,
    Key,
    MetadataValues,
    Sizes,
    TensorMap,
    decoder_sizes,
    linear,
)
from ollama_engine.convert.keys import DECODER_KEYS, require
from ollama_engine.convert.rope import rope_keys, rope_parameters
from ollama_engine.convert.source.folder import Config
from ollama_engine.convert.transforms import Transform, half
from ollama_engine.errors import UnsupportedModelError

__all__ = [
    "ATTENTION",
    "ATTN_NORM",
    "BLOCK",
    "EMBEDDING",
    "FFN_NORM",
    "LAYER",
    "MLP",
    "OUTPUT",
    "QK_NORM",
    "attention_layers",
    "decoder",
    "experts",
    "has_experts",
    "is_dense",
    "layer_types",
    "local_rope_keys",
    "n_dense",
    "norm",
    "only",
    "requiring",
    "rope_and_size",
    "rotated_part",
    "shared_expert",
    "sizes",
]

BLOCK = "blk.{i}."
LAYER = "model.layers.{i}."

ATTENTION = (
    *linear(BLOCK + "attn_q", LAYER + "self_attn.q_proj", "q_size", "n_embd"),
    *linear(BLOCK + "attn_k", LAYER + "self_attn.k_proj", "kv_size", "n_embd"),
    *linear(BLOCK + "attn_v", LAYER + "self_attn.v_proj", "kv_size", "n_embd"),
    *linear(BLOCK + "attn_output", LAYER + "self_attn.o_proj", "n_embd", "q_size"),
)
QK_NORM = (
    TensorMap(BLOCK + "attn_q_norm.weight", LAYER + "self_attn.q_norm.weight", ("head_dim",)),
    TensorMap(BLOCK + "attn_k_norm.weight", LAYER + "self_attn.k_norm.weight", ("head_dim",)),
)
MLP = (
    *linear(BLOCK + "ffn_gate", LAYER + "mlp.gate_proj", "n_ff", "n_embd"),
    *linear(BLOCK + "ffn_up", LAYER + "mlp.up_proj", "n_ff", "n_embd"),
    *linear(BLOCK + "ffn_down", LAYER + "mlp.down_proj", "n_embd", "n_ff"),
)


def norm(target: str, source: str, transform: Transform | None = None) -> TensorMap:
    """A norm's weight over the hidden values."""
    return TensorMap(f"{target}.weight", f"{source}.weight", ("n_embd",), transform)


EMBEDDING = TensorMap("token_embd.weight", "model.embed_tokens.weight", ("n_vocab", "n_embd"))
ATTN_NORM = norm(BLOCK + "attn_norm", LAYER + "input_layernorm")
FFN_NORM = norm(BLOCK + "ffn_norm", LAYER + "post_attention_layernorm")
OUTPUT_NORM = (norm("output_norm", "model.norm"),)
OUTPUT = TensorMap("output.weight", "lm_head.weight", ("n_vocab", "n_embd"), optional=True)


def experts(applies: Callable[[Config, int], bool] | None = None) -> tuple[TensorMap, ...]:
    """A router and its experts: one tensor for each expert as published, or all in one as transformers 5 has them."""
    source = LAYER + "mlp.experts."
    fused = ("n_expert", "n_ff_exp_twice", "n_embd")

    def weight(name: str, part: str, shape: tuple[str, ...], transform: Transform | None = None) -> TensorMap:
        return TensorMap(f"{BLOCK}ffn_{name}_exps.weight", source + part, shape, transform, applies=applies)

    return (
        TensorMap(BLOCK + "ffn_gate_inp.weight", LAYER + "mlp.gate.weight", ("n_expert", "n_embd"), applies=applies),
        weight("gate", "{e}.gate_proj.weight", ("n_ff_exp", "n_embd")),
        weight("up", "{e}.up_proj.weight", ("n_ff_exp", "n_embd")),
        weight("down", "{e}.down_proj.weight", ("n_embd", "n_ff_exp")),
        weight("gate", "gate_up_proj", fused, half(0, 1)),
        weight("up", "gate_up_proj", fused, half(1, 1)),
        weight("down", "down_proj", ("n_expert", "n_embd", "n_ff_exp")),
    )


def shared_expert(source: str) -> tuple[TensorMap, ...]:
    """The expert that all tokens share, or several as one; `source` is its place in a layer."""
    return (
        *linear(BLOCK + "ffn_gate_shexp", f"{LAYER}{source}.gate_proj", "n_ff_shexp", "n_embd"),
        *linear(BLOCK + "ffn_up_shexp", f"{LAYER}{source}.up_proj", "n_ff_shexp", "n_embd"),
        *linear(BLOCK + "ffn_down_shexp", f"{LAYER}{source}.down_proj", "n_embd", "n_ff_shexp"),
    )


def n_dense(config: Config, default: int = 0) -> int:
    """Blocks without experts, which are the first ones."""
    types = config.get("mlp_layer_types")
    if types is None:
        return config.whole("first_k_dense_replace", default=default)
    dense = [kind == "dense" for kind in types] if isinstance(types, list) else []
    if len(dense) != config.whole("num_hidden_layers"):
        raise config.wrong(("mlp_layer_types",), "'dense' or 'sparse' for each layer", types)
    if not all(dense[: sum(dense)]):
        raise UnsupportedModelError(f"{config.home}: blocks without experts follow others, which GGUF has no key for")
    return sum(dense)


def has_experts(config: Config, layer: int) -> bool:
    """Whether a block has experts, where the first ones have none."""
    return layer >= n_dense(config)


def is_dense(config: Config, layer: int) -> bool:
    """Whether it has none."""
    return not has_experts(config, layer)


def only(applies: Callable[[Config, int], bool], *tensors: TensorMap) -> tuple[TensorMap, ...]:
    """Declarations that hold for some layers."""
    return tuple(replace(tensor, applies=applies) for tensor in tensors)


def sizes(config: Config) -> dict[str, int]:
    """`decoder_sizes`, with those of fused projections and experts."""
    plain = decoder_sizes(config)
    hidden = config.whole("moe_intermediate_size", default=plain["n_ff"])
    return plain | {
        "qkv_size": plain["q_size"] + 2 * plain["kv_size"],
        "n_ff_twice": 2 * plain["n_ff"],
        "n_ff_exp": hidden,
        "n_ff_exp_twice": 2 * hidden,
    }


def rotated_part(config: Config, head_dim: int, default: float = 1.0) -> int:
    """How many dimensions of a head rotate."""
    part = rope_parameters(config).get("partial_rotary_factor")
    return int(head_dim * float(config.number("partial_rotary_factor", default=default) if part is None else part))


def rope_and_size(config: Config, sizes: Sizes) -> Mapping[str, Any]:
    """Keys of the rotation, and how many dimensions of a head rotate."""
    return {"rope.dimension_count": sizes["head_dim"], **rope_keys(config)}


def requiring(
    values: Mapping[str, Any], more_keys: Callable[[Config, Sizes], MetadataValues] = rope_and_size
) -> Callable[[Config, Sizes], MetadataValues]:
    """`more_keys` for configs that say these values or nothing; see `require`."""

    def checked(config: Config, sizes: Sizes) -> MetadataValues:
        require(config, values)
        return more_keys(config, sizes)

    return checked


def decoder(
    name: str,
    classes: tuple[str, ...],
    block: tuple[TensorMap, ...],
    *,
    sizes: Callable[[Config], Sizes] = sizes,
    keys: tuple[Key, ...] = DECODER_KEYS,
    more_keys: Callable[[Config, Sizes], MetadataValues] = rope_and_size,
    output_norm: tuple[TensorMap, ...] = OUTPUT_NORM,
    pre_names: tuple[str, ...] = (),
    llama3_rope: bool = True,
) -> Architecture:
    """A decoder: the token embedding, the tensors of each `block`, a norm and the output. See `Architecture`."""
    return Architecture(
        name=name,
        classes=classes,
        sizes=sizes,
        keys=keys,
        tensors=(EMBEDDING, *block, *output_norm, OUTPUT),
        more_keys=more_keys,
        pre_names=pre_names,
        llama3_rope=llama3_rope,
    )


def local_rope_keys(config: Config) -> Mapping[str, Any]:
    """The base by which local layers rotate, where they have one of their own."""
    nested = config.mapping("rope_parameters", "rope_scaling").get("sliding_attention") or {}
    base = config.number("rope_local_base_freq", default=None) if "rope_theta" not in nested else nested["rope_theta"]
    return {} if base is None else {"rope.freq_base_swa": float(base)}


def layer_types(config: Config, default: Callable[[int], bool]) -> list[bool]:
    """Whether each layer is local: what `layer_types` says, or `default` of the layer's number where it is absent."""
    n_layer = config.whole("num_hidden_layers")
    types = config.get("layer_types")
    if types is None:
        return [default(i) for i in range(n_layer)]
    known = {"sliding_attention": True, "full_attention": False}
    if not isinstance(types, list) or len(types) != n_layer or not all(t in known for t in types):
        raise config.wrong(("layer_types",), f"{n_layer} of {', '.join(known)}", types)
    return [known[t] for t in types]


def attention_layers(config: Config) -> list[bool]:
    """Whether each layer has attention. Raises ModelFormatError for `layer_types` that make no sense."""
    n_layer = config.whole("num_hidden_layers")
    interval = config.whole("full_attention_interval", default=4)
    types = config.get("layer_types")
    if types is None:
        return [(i + 1) % interval == 0 for i in range(n_layer)]
    known = {"linear_attention": False, "full_attention": True}
    if not isinstance(types, list) or len(types) != n_layer or not all(t in known for t in types):
        raise config.wrong(("layer_types",), f"{n_layer} of {', '.join(known)}", types)
    return [known[t] for t in types]
