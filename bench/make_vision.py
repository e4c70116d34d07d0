"""Write a pair of GGUF files, text model and "mmproj", with Gemma 3's vision tower and random weights.

    python bench/make_vision.py f16 FOLDER [--layers 27]

For speed measurements, as `make_model` does it for text. The tower is SigLIP so400m: 4096 patches of a picture of 896
times 896 pixels, 256 soft tokens. The text model is small. Needs the extra `bench` (the gguf package).
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import gguf
from gguf import GGMLQuantizationType as QuantType

if __package__ in (None, ""):  # run as a program
    import sys

    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.make_model import base_type, write_random

KINDS = ("f32", "f16", "bf16")
SPECIALS = ("<bos>", "<eos>", "<start_of_image>", "<end_of_image>", "<start_of_turn>", "<end_of_turn>")
N_BYTES = 256
TEMPLATE = (
    "{% for m in messages %}{{ '<start_of_turn>' + m['role'] + '\\n' + m['content'] + '<end_of_turn>\\n' }}{% endfor %}"
    "{{ '<start_of_turn>model\\n' }}"
)


@dataclass(frozen=True)
class VisionShape:
    """Sizes of the tower (`v_`) and of the text model; the defaults are SigLIP so400m and a small Gemma 3."""

    v_layer: int = 27
    v_embd: int = 1152
    v_ff: int = 4304
    v_head: int = 16
    image: int = 896
    patch: int = 14
    n_layer: int = 6
    n_embd: int = 640
    n_ff: int = 2048
    n_head: int = 4
    n_head_kv: int = 1
    head_dim: int = 256
    n_ctx: int = 4096


class Pair(NamedTuple):
    """The files of one model."""

    text: Path
    projector: Path


Shapes = Iterable[tuple[str, tuple[int, ...]]]


def vision_tensors(shape: VisionShape) -> Shapes:
    """(name, numpy shape) of the projector's file."""
    n, ff = shape.v_embd, shape.v_ff
    yield "v.patch_embd.weight", (n, 3, shape.patch, shape.patch)
    yield "v.patch_embd.bias", (n,)
    yield "v.position_embd.weight", ((shape.image // shape.patch) ** 2, n)
    for i in range(shape.v_layer):
        yield from norm(f"v.blk.{i}.ln1", n)
        yield from norm(f"v.blk.{i}.ln2", n)
        for name, dims in {"attn_q": (n, n), "attn_k": (n, n), "attn_v": (n, n), "attn_out": (n, n),
                           "ffn_up": (ff, n), "ffn_down": (n, ff)}.items():  # fmt: skip
            yield f"v.blk.{i}.{name}.weight", dims
            yield f"v.blk.{i}.{name}.bias", dims[:1]
    yield from norm("v.post_ln", n)
    yield "mm.soft_emb_norm.weight", (n,)
    yield "mm.input_projection.weight", (n, shape.n_embd)


def text_tensors(shape: VisionShape) -> Shapes:
    """(name, numpy shape) of the text model's file."""
    n, q, kv = shape.n_embd, shape.n_head * shape.head_dim, shape.n_head_kv * shape.head_dim
    yield "token_embd.weight", (N_BYTES + len(SPECIALS), n)
    for i in range(shape.n_layer):
        for name in ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"):
            yield f"blk.{i}.{name}.weight", (n,)
        for name in ("attn_q_norm", "attn_k_norm"):
            yield f"blk.{i}.{name}.weight", (shape.head_dim,)
        for name, dims in {"attn_q": (q, n), "attn_k": (kv, n), "attn_v": (kv, n), "attn_output": (n, q),
                           "ffn_gate": (shape.n_ff, n), "ffn_up": (shape.n_ff, n),
                           "ffn_down": (n, shape.n_ff)}.items():  # fmt: skip
            yield f"blk.{i}.{name}.weight", dims
    yield "output_norm.weight", (n,)


def norm(name: str, n: int) -> Shapes:
    """Weight and bias of a norm of `n` numbers."""
    yield f"{name}.weight", (n,)
    yield f"{name}.bias", (n,)


def write_pair(folder: Path, kind: str, shape: VisionShape) -> Pair:
    """Write both files, with matrices of one type."""
    pair = Pair(folder / f"text-{kind}.gguf", folder / f"mmproj-{kind}-{shape.v_layer}.gguf")
    text = gguf.GGUFWriter(str(pair.text), "gemma3")
    _add_text_metadata(text, shape)
    write_tensors(text, text_tensors(shape), kind, seed=0)
    vision = gguf.GGUFWriter(str(pair.projector), "clip")
    _add_vision_metadata(vision, shape)
    write_tensors(vision, vision_tensors(shape), kind, seed=1)
    return pair


def write_tensors(writer: gguf.GGUFWriter, tensors: Shapes, preset: str, *, seed: int) -> None:
    """Random values for all tensors, matrices of the type `preset`; writes and closes the file."""

    def kind(name: str, dims: tuple[int, ...]) -> QuantType:
        if len(dims) == 1 or "position" in name:
            return QuantType.F32
        # ggml's convolution takes no bfloat16.
        return base_type("f16" if "patch" in name and preset == "bf16" else preset)

    write_random(writer, tensors, kind, seed=seed)


def _add_vision_metadata(writer: gguf.GGUFWriter, shape: VisionShape) -> None:
    writer.add_string("general.type", "mmproj")
    writer.add_bool("clip.has_vision_encoder", True)
    writer.add_string("clip.projector_type", "gemma3")
    writer.add_bool("clip.use_gelu", True)
    for key, value in {
        "image_size": shape.image, "patch_size": shape.patch, "embedding_length": shape.v_embd,
        "feed_forward_length": shape.v_ff, "projection_dim": shape.n_embd, "block_count": shape.v_layer,
        "attention.head_count": shape.v_head,
    }.items():  # fmt: skip
        writer.add_uint32(f"clip.vision.{key}", value)
    writer.add_float32("clip.vision.attention.layer_norm_epsilon", 1e-6)
    for key in ("image_mean", "image_std"):
        writer.add_array(f"clip.vision.{key}", [0.5, 0.5, 0.5])


def _add_text_metadata(writer: gguf.GGUFWriter, shape: VisionShape) -> None:
    for key, value in {
        "context_length": shape.n_ctx, "embedding_length": shape.n_embd, "block_count": shape.n_layer,
        "feed_forward_length": shape.n_ff, "attention.head_count": shape.n_head,
        "attention.head_count_kv": shape.n_head_kv, "attention.key_length": shape.head_dim,
        "attention.value_length": shape.head_dim, "attention.sliding_window": 1024,
    }.items():  # fmt: skip
        writer.add_uint32(f"gemma3.{key}", value)
    writer.add_float32("gemma3.attention.layer_norm_rms_epsilon", 1e-6)
    writer.add_float32("gemma3.rope.freq_base", 1e6)
    add_bytes(writer, SPECIALS, TEMPLATE)


def add_bytes(writer: gguf.GGUFWriter, specials: tuple[str, ...], template: str) -> None:
    """A vocabulary of the 256 bytes and `specials`, of which the first two begin and end a text."""
    tokens = [f"<0x{byte:02X}>" for byte in range(N_BYTES)]
    types = [gguf.TokenType.BYTE] * N_BYTES + [gguf.TokenType.CONTROL] * len(specials)
    writer.add_tokenizer_model("llama")
    writer.add_token_list([*tokens, *specials])
    writer.add_token_scores([0.0] * (N_BYTES + len(specials)))
    writer.add_token_types([int(kind) for kind in types])
    writer.add_bos_token_id(N_BYTES)
    writer.add_eos_token_id(N_BYTES + 1)
    writer.add_unk_token_id(0)
    writer.add_add_bos_token(True)
    writer.add_add_space_prefix(False)
    writer.add_chat_template(template)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Write a text model and its vision tower with random weights.")
    parser.add_argument("type", choices=KINDS)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--layers", type=int, default=27, help="of the vision tower")
    chosen = parser.parse_args(arguments)
    chosen.folder.mkdir(parents=True, exist_ok=True)
    print(*write_pair(chosen.folder, chosen.type, VisionShape(v_layer=chosen.layers)))


if __name__ == "__main__":
    main()
