"""Vision towers of real widths with random weights, beside a text model: pairs of files as llama.cpp reads them.

Each family has the keys and the tensors of both files. Matrices are f16; `n_layer` of the tower is what one asks for,
and everything else is the published size: Qwen2.5-VL 7B, Qwen3-VL, Mistral Small 3.1, LLaVA 1.5, Llama 4 Scout. The
text model of qwen3-vl-2b is whole, those of the others are small.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import gguf

from bench.make_model import TEMPLATE, write_model
from bench.make_vision import Pair, Shapes, add_bytes, norm, write_tensors
from bench.model_shapes import SHAPES
from ollama_engine.convert.metadata import add_value

N_TEXT, N_FF, N_HEAD, N_HEAD_KV, N_TEXT_LAYER = 1024, 2816, 8, 2, 4
HEAD_DIM = N_TEXT // N_HEAD
N_EXPERT, N_EXPERT_FF = 16, 256
HALVES = (0.5, 0.5, 0.5)
CLIP_MEAN, CLIP_STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)

Value = int | float | bool | str | list[int]


@dataclass(frozen=True)
class Family:
    """A text model and the tower it reads pictures with; sizes are those of the tower."""

    architecture: str
    """The text model's."""
    projector: str
    """Value of clip.projector_type."""
    n_embd: int
    n_ff: int
    image_size: int
    keys: Callable[[int], Mapping[str, Value]]
    """Layers of the tower -> keys below `clip.`."""
    outer: Shapes
    """(name, numpy shape) of what the tower has beside its blocks."""
    bias: bool = True
    """Products of a block have one."""
    rms: bool = False
    """Norms have no bias."""
    gated: bool = False
    specials: tuple[str, ...] = ()
    qkv_bias: bool = False
    """The text model's queries, keys and values have one."""
    qk_norm: bool = False
    """The text model's heads of queries and keys are normalized."""
    fused: bool = False
    """Queries, keys and values of the tower are one matrix."""
    deepstack: int = 0
    """Layers of the text model that gain features, of the tower's first blocks here; at most as many as it has."""
    experts: bool = False
    text_keys: Mapping[str, Value] = field(default_factory=dict)
    text: str = ""
    """A shape of `model_shapes`, the text model of published size, in place of the small one."""
    means: tuple[tuple[float, ...], tuple[float, ...]] = (CLIP_MEAN, CLIP_STD)

    @property
    def n_text(self) -> int:
        """Length of an embedding of the text model."""
        return SHAPES[self.text].n_embd if self.text else N_TEXT

    def vision_tensors(self, n_layer: int) -> Shapes:
        """(name, numpy shape) of the projector's file."""
        n, ff = self.n_embd, self.n_ff
        matrices = {f"attn_{part}": (n, n) for part in ("q", "k", "v", "out")}
        if self.fused:
            matrices = {"attn_qkv": (3 * n, n), "attn_out": (n, n)}
        matrices |= {"ffn_up": (ff, n), "ffn_down": (n, ff), **({"ffn_gate": (ff, n)} if self.gated else {})}
        yield from self.outer
        for i in range(n_layer):
            for name in ("ln1", "ln2"):
                yield from list(norm(f"v.blk.{i}.{name}", n))[: 1 if self.rms else 2]
            for name, dims in matrices.items():
                yield f"v.blk.{i}.{name}.weight", dims
                if self.bias:
                    yield f"v.blk.{i}.{name}.bias", dims[:1]
        for i in range(min(self.deepstack, n_layer)):
            yield from norm(f"v.deepstack.{i}.norm", 4 * n)
            for name, out in {"fc1": 4 * n, "fc2": self.n_text}.items():
                yield f"v.deepstack.{i}.{name}.weight", (out, 4 * n)
                yield f"v.deepstack.{i}.{name}.bias", (out,)

    def text_tensors(self) -> Shapes:
        """(name, numpy shape) of the text model's file."""
        n, kv = N_TEXT, N_HEAD_KV * HEAD_DIM
        yield "token_embd.weight", (256 + 2 + len(self.specials), n)
        for i in range(N_TEXT_LAYER):
            for name in ("attn_norm", "ffn_norm"):
                yield f"blk.{i}.{name}.weight", (n,)
            for name, dims in {"attn_q": (n, n), "attn_k": (kv, n), "attn_v": (kv, n)}.items():
                yield f"blk.{i}.{name}.weight", dims
                if self.qkv_bias:
                    yield f"blk.{i}.{name}.bias", dims[:1]
            if self.qk_norm:
                yield f"blk.{i}.attn_q_norm.weight", (HEAD_DIM,)
                yield f"blk.{i}.attn_k_norm.weight", (HEAD_DIM,)
            yield f"blk.{i}.attn_output.weight", (n, n)
            yield from self._feed_forward(i)
        yield "output_norm.weight", (n,)

    def _feed_forward(self, i: int) -> Shapes:
        if self.experts:
            yield f"blk.{i}.ffn_gate_inp.weight", (N_EXPERT, N_TEXT)
        ff = N_EXPERT_FF if self.experts else N_FF
        for name, dims in {"gate": (ff, N_TEXT), "up": (ff, N_TEXT), "down": (N_TEXT, ff)}.items():
            if self.experts:
                yield f"blk.{i}.ffn_{name}_exps.weight", (N_EXPERT, *dims)
                yield f"blk.{i}.ffn_{name}_shexp.weight", dims
            else:
                yield f"blk.{i}.ffn_{name}.weight", dims


def _qwen() -> Family:
    n, merged = 1280, 4 * 1280
    return Family(
        "qwen2vl", "qwen2.5vl_merger", n, 3420, 560, rms=True, gated=True, qkv_bias=True,
        # Every eighth of the published 32 layers sees the whole picture.
        keys=lambda n_layer: {"use_silu": True, "vision.n_wa_pattern": min(8, n_layer), "vision.spatial_merge_size": 2,
                              "vision.window_size": 112, "vision.attention.layer_norm_epsilon": 1e-6},
        outer=[
            ("v.patch_embd.weight", (n, 3, 14, 14)), ("v.patch_embd.weight.1", (n, 3, 14, 14)),
            ("v.post_ln.weight", (n,)), ("mm.0.weight", (merged, merged)), ("mm.0.bias", (merged,)),
            ("mm.2.weight", (N_TEXT, merged)), ("mm.2.bias", (N_TEXT,)),
        ],
        specials=("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"),
        text_keys={"rope.dimension_sections": [16, 24, 24, 0]},
    )  # fmt: skip


def _qwen3(text: str = "") -> Family:
    n, merged, n_text = 1152, 4 * 1152, SHAPES[text].n_embd if text else N_TEXT
    return Family(
        "qwen3vl", "qwen3vl_merger", n, 4304, 768, qk_norm=True, fused=True, deepstack=3, means=(HALVES, HALVES),
        keys=lambda n_layer: {"use_gelu": True, "vision.patch_size": 16, "vision.spatial_merge_size": 2,
                              "vision.attention.layer_norm_epsilon": 1e-6},
        outer=[
            ("v.patch_embd.weight", (n, 3, 16, 16)), ("v.patch_embd.weight.1", (n, 3, 16, 16)),
            ("v.patch_embd.bias", (n,)), ("v.position_embd.weight", (2304, n)), *norm("v.post_ln", n),
            ("mm.0.weight", (merged, merged)), ("mm.0.bias", (merged,)),
            ("mm.2.weight", (n_text, merged)), ("mm.2.bias", (n_text,)),
        ],
        specials=("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"),
        text_keys={"rope.dimension_sections": [24, 20, 20, 0]}, text=text,
    )  # fmt: skip


def _pixtral() -> Family:
    n = 1024
    return Family(
        "llama", "pixtral", n, 4096, 1540, bias=False, rms=True, gated=True,
        keys=lambda n_layer: {"use_silu": True, "vision.spatial_merge_size": 2,
                              "vision.attention.layer_norm_epsilon": 1e-5},
        outer=[
            ("v.patch_embd.weight", (n, 3, 14, 14)), ("v.pre_ln.weight", (n,)), ("mm.input_norm.weight", (n,)),
            ("mm.patch_merger.weight", (n, 4 * n)), ("mm.1.weight", (N_TEXT, n)), ("mm.2.weight", (N_TEXT, N_TEXT)),
            ("v.token_embd.img_break", (N_TEXT,)),
        ],
        specials=("[IMG]", "[IMG_BREAK]", "[IMG_END]"),
    )  # fmt: skip


def _llava() -> Family:
    n = 1024
    return Family(
        "llama", "mlp", n, 4096, 336,
        keys=lambda n_layer: {"vision.feature_layer": [n_layer], "vision.attention.layer_norm_epsilon": 1e-5},
        outer=[
            ("v.patch_embd.weight", (n, 3, 14, 14)), ("v.class_embd", (n,)), ("v.position_embd.weight", (577, n)),
            *norm("v.pre_ln", n), ("mm.0.weight", (N_TEXT, n)), ("mm.0.bias", (N_TEXT,)),
            ("mm.2.weight", (N_TEXT, N_TEXT)), ("mm.2.bias", (N_TEXT,)),
        ],
    )  # fmt: skip


def _llama4() -> Family:
    n, adapter = 1408, 4096
    return Family(
        "llama4", "llama4", n, 5632, 336, experts=True, means=(HALVES, HALVES),
        keys=lambda n_layer: {"use_gelu": True, "vision.projector.scale_factor": 2,
                              "vision.attention.layer_norm_epsilon": 1e-5},
        outer=[
            ("v.patch_embd.weight", (n, 3 * 14 * 14)), ("v.class_embd", (n,)), ("v.position_embd.weight", (577, n)),
            *norm("v.pre_ln", n), *norm("v.post_ln", n), ("mm.model.mlp.1.weight", (adapter, 4 * n)),
            ("mm.model.mlp.2.weight", (adapter, adapter)), ("mm.model.fc.weight", (N_TEXT, adapter)),
        ],
        specials=("<|image_start|>", "<|image_end|>", "<|patch|>", "<|tile_x_separator|>", "<|tile_y_separator|>",
                  "<|image|>"),
        text_keys={"expert_count": N_EXPERT, "expert_used_count": 1, "expert_feed_forward_length": N_EXPERT_FF,
                   "interleave_moe_layer_step": 1},
    )  # fmt: skip


FAMILIES: Mapping[str, Family] = {
    "qwen2.5-vl": _qwen(),
    "qwen3-vl": _qwen3(),
    "qwen3-vl-2b": _qwen3("qwen3-vl-2b"),
    "pixtral": _pixtral(),
    "llava-1.5": _llava(),
    "llama4": _llama4(),
}


def write_family(folder: Path, name: str, n_layer: int) -> Pair:
    """Write both files of a family, with so many layers of the tower; a text model of published size is Q4_K_M."""
    family = FAMILIES[name]
    pair = Pair(folder / f"{name}-text.gguf", folder / f"mmproj-{name}-{n_layer}.gguf")
    if family.text:
        write_model(str(pair.text), SHAPES[family.text], "q4_k_m")
    else:
        _write_text(pair.text, family, n_layer)
    vision = gguf.GGUFWriter(str(pair.projector), "clip")
    vision.add_string("general.type", "mmproj")
    add_keys(vision, "clip", {
        "has_vision_encoder": True, "projector_type": family.projector, "vision.image_size": family.image_size,
        "vision.patch_size": 14, "vision.embedding_length": family.n_embd, "vision.feed_forward_length": family.n_ff,
        "vision.projection_dim": family.n_text, "vision.block_count": n_layer, "vision.attention.head_count": 16,
        **family.keys(n_layer),
    })  # fmt: skip
    for key, values in zip(("image_mean", "image_std"), family.means, strict=True):
        vision.add_array(f"clip.vision.{key}", list(values))
    write_tensors(vision, family.vision_tensors(n_layer), "f16", seed=1)
    return pair


def _write_text(path: Path, family: Family, n_layer: int) -> None:
    text = gguf.GGUFWriter(str(path), family.architecture)
    add_keys(text, family.architecture, {
        "context_length": 8192, "embedding_length": N_TEXT, "block_count": N_TEXT_LAYER, "feed_forward_length": N_FF,
        "attention.head_count": N_HEAD, "attention.head_count_kv": N_HEAD_KV, "rope.dimension_count": HEAD_DIM,
        "attention.layer_norm_rms_epsilon": 1e-6, "rope.freq_base": 1e6, **family.text_keys,
        **({"n_deepstack_layers": min(family.deepstack, n_layer)} if family.deepstack else {}),
    })  # fmt: skip
    add_bytes(text, ("<s>", "</s>", *family.specials), TEMPLATE)
    write_tensors(text, family.text_tensors(), "f16", seed=0)


def add_keys(writer: gguf.GGUFWriter, prefix: str, keys: Mapping[str, Value]) -> None:
    """Keys below `prefix`, each with the type that its value has; whole numbers are u32."""
    for key, value in keys.items():
        add_value(writer, f"{prefix}.{key}", value)
