"""Qwen3-VL -> `general.architecture` = qwen3vl, qwen3vlmoe: a Qwen3 with positions of three axes, and its encoder.

Dialect: see `vision`. The kernel over both frames of a patch is one tensor here, of four dimensions. Queries, keys and
values of the encoder come from one matrix, and become three. The encoder of Qwen3.5 is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from ollama_engine.convert.architecture import Architecture, Sizes, TensorMap, layered
from ollama_engine.convert.decoder import LAYER
from ollama_engine.convert.qwen import QWEN3, QWEN3MOE, named, reranker
from ollama_engine.convert.qwen25vl import FRAMES, TOKENS, VISION_KEYS, pixel_limits
from ollama_engine.convert.rope import mrope_sections
from ollama_engine.convert.sentence_modules import POOLING
from ollama_engine.convert.source.folder import Config
from ollama_engine.convert.transforms import Transform, half, row_part, transpose
from ollama_engine.convert.vision import affine, expect, image_part, matrix, numbers, rope_base

__all__ = ["ARCHITECTURES", "TABLE", "VISION"]

TABLE = r"^v\.pos_embed\.weight$"
"""The position embeddings, which stay float32."""

BLOCK_V, SOURCE = "v.blk.{i}.", "visual.blocks.{i}."


def _vision_sizes(vision: Config, config: Config) -> Sizes:
    n_embd = vision.whole("hidden_size")
    return {
        "v_qkv": 3 * n_embd,
        "v_merged": n_embd * vision.whole("spatial_merge_size") ** 2,
        "v_positions": vision.whole("num_position_embeddings"),
        "v_deepstack": len(vision.get("deepstack_visual_indexes", default=())),
    }


def _vision_keys(vision: Config, config: Config, sizes: Sizes) -> Mapping[str, Any]:
    expect(vision, "temporal_patch_size", FRAMES, default=FRAMES)
    listed = numbers(vision, "deepstack_visual_indexes", sizes["v_layer"]) if sizes["v_deepstack"] else []
    return {
        "vision.temporal_patch_size": FRAMES,
        "vision.attention.layer_norm_epsilon": 1e-6,  # the same number in all that was published, and in no config
        "vision.rope.freq_base": rope_base(vision),
        **({"vision.deepstack_visual_indexes": listed} if listed else {}),
    }


def _image_keys(processor: Config) -> Mapping[str, Any]:
    edges = {"vision.min_pixels": "vision.shortest_edge", "vision.max_pixels": "vision.longest_edge"}
    return {edges[name]: value for name, value in pixel_limits(processor).items()}


MERGED_FRAMES = Transform(
    lambda values, sizes: values.reshape(-1, *values.shape[2:]),
    lambda shape, sizes: (shape[0] * shape[1], *shape[2:]),
    entrywise=False,
)
"""The first two dimensions, numbers of an embedding and colours, as one."""


def _merger(target: str, source: str, norm: str) -> tuple[TensorMap, ...]:
    return (
        *affine(f"{target}.norm", f"{source}.norm", norm),
        *affine(f"{target}.linear_fc1", f"{source}.linear_fc1", "v_merged", "v_merged"),
        *affine(f"{target}.linear_fc2", f"{source}.linear_fc2", "n_embd", "v_merged"),
    )


VISION = image_part(
    activation="gelu_pytorch_tanh",
    defaults={
        "depth": 27, "num_heads": 16, "in_channels": 3, "intermediate_size": 4304, "patch_size": 16,
        "temporal_patch_size": FRAMES, "spatial_merge_size": 2, "num_position_embeddings": 2304,
    },
    keys=VISION_KEYS[:1],
    outer_keys=TOKENS,
    more_sizes=_vision_sizes,
    more_keys=_vision_keys,
    image_keys=_image_keys,
    tensors=(
        TensorMap("v.patch_embed.weight", "visual.patch_embed.proj.weight",
                  ("v_embd", "v_channels", FRAMES, "v_patch", "v_patch"), MERGED_FRAMES),
        TensorMap("v.patch_embed.bias", "visual.patch_embed.proj.bias", ("v_embd",)),
        matrix("v.pos_embed", "visual.pos_embed", "v_positions", "v_embd"),
        *layered(
            "v_layer",
            *affine(BLOCK_V + "norm1", SOURCE + "norm1", "v_embd"),
            *(
                tensor
                for which, name in enumerate("qkv")
                for tensor in affine(BLOCK_V + f"attn_{name}", SOURCE + "attn.qkv", "v_qkv", "v_embd",
                                     transform=row_part(which, 3))
            ),
            *affine(BLOCK_V + "attn_out", SOURCE + "attn.proj", "v_embd", "v_embd"),
            *affine(BLOCK_V + "norm2", SOURCE + "norm2", "v_embd"),
            *affine(BLOCK_V + "mlp.linear_fc1", SOURCE + "mlp.linear_fc1", "v_ff", "v_embd"),
            *affine(BLOCK_V + "mlp.linear_fc2", SOURCE + "mlp.linear_fc2", "v_embd", "v_ff"),
        ),
        *_merger("v.merger", "visual.merger", "v_embd"),
        *layered("v_deepstack", *_merger("v.deepstack_merger.{i}", "visual.deepstack_merger_list.{i}", "v_merged")),
    ),
)  # fmt: skip


def _sectioned(keys: Callable[[Config, Sizes], Mapping[str, Any]]) -> Callable[[Config, Sizes], Mapping[str, Any]]:
    """`keys`, how many pairs of a head go by each axis of positions, under Ollama's name and llama.cpp's, and how many
    layers gain features of images, which llama.cpp asks the text part.
    """

    def more(config: Config, sizes: Sizes) -> Mapping[str, Any]:
        listed = mrope_sections(config, sizes["head_dim"] // 2, (24, 20, 20))
        features = config.mapping("vision_config").get("deepstack_visual_indexes") or ()
        return {
            **keys(config, sizes),
            "mrope_sections": listed,
            "rope.dimension_sections": [*listed, 0],
            "n_deepstack_layers": len(features),
        }

    return more


def _with_images(text: Architecture, name: str, class_name: str) -> Architecture:
    return replace(
        text, name=name, classes=(class_name,), more_keys=_sectioned(text.more_keys), vision=VISION,
        always_f32=(*text.always_f32, TABLE),
    )  # fmt: skip


EXPERTS = LAYER + "mlp.experts."


def _both_ways(tensor: TensorMap) -> tuple[TensorMap, ...]:
    """Weights of experts are [out, in] in folders that transformers 5 writes, and the other way round as published."""
    if tensor.source == EXPERTS + "gate_up_proj":
        which = 0 if "ffn_gate_exps" in tensor.target else 1
        turned = replace(tensor, shape=("n_expert", "n_embd", "n_ff_exp_twice"), transform=half(which, 2, turned=True))
    elif tensor.source == EXPERTS + "down_proj":
        turned = replace(tensor, shape=("n_expert", "n_ff_exp", "n_embd"), transform=transpose())
    else:
        return (tensor,)
    return replace(tensor, if_it_fits=True), turned


SPARSE = replace(
    QWEN3MOE,
    tensors=tuple(both for tensor in QWEN3MOE.tensors for both in _both_ways(tensor)),
    defaults={"norm_topk_prob": True},  # these models always normalize, and their config does not say
)

# -- Qwen3-VL-Embedding and -Reranker ----------------------------------------------------------------------------------

PIXELS = {"vision.shortest_edge": 4 * 32**2, "vision.longest_edge": 1800 * 32**2}
"""Least and most pixels of a picture, by the code of the models' cards; the folder's processor allows more."""
USER = "<|im_end|>\n<|im_start|>user\n"
END = "<|im_end|>\n<|im_start|>assistant\n"
EMBED = "<|im_start|>system\n{instruction}" + USER + "{input}" + END
INSTRUCTION = "Represent the user's input."
RERANK = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
    'provided. Note that the answer can only be "yes" or "no".' + USER + "<Instruct>: Given a search query, retrieve "
    "relevant candidates that answer the query.<Query>:{query}\n<Document>:{document}" + END
)


def _embedder(text: Architecture) -> Architecture:
    """The hidden state of the last token is the vector; a folder's own prompts take the instruction's place."""
    return replace(
        text, fits=named("qwen3-vl-embedding"), chat_templates={"embed": EMBED},
        more_keys=lambda config, sizes: {
            **text.more_keys(config, sizes), "prompt.instruction": INSTRUCTION, "pooling_type": POOLING["lasttoken"]
        },
    )  # fmt: skip


def _fewer_pixels(text: Architecture) -> Architecture:
    vision = replace(VISION, image_keys=lambda processor: {**VISION.image_keys(processor), **PIXELS})
    return replace(text, vision=vision)


QWEN3VL = _with_images(QWEN3, "qwen3vl", "Qwen3VLForConditionalGeneration")
ARCHITECTURES = (
    QWEN3VL,
    _fewer_pixels(_embedder(QWEN3VL)),
    _fewer_pixels(reranker(QWEN3VL, "qwen3-vl-reranker", RERANK)),
    _with_images(SPARSE, "qwen3vlmoe", "Qwen3VLMoeForConditionalGeneration"),
)
