"""Write a GGUF model with the shape of a real one and random weights.

    python bench/make_model.py llama-1b q4_k_m OUT.gguf

For speed measurements, where only shapes and types count. The blocks of the quantized types are random bits with
small scales rather than quantized numbers, so that a file is written at the disk's speed; activations and logits stay
finite. Which tensor gets which type follows llama.cpp's presets, as in `ollama-engine quantize`. Needs the extra
`bench` (the gguf package).
"""

from __future__ import annotations

import argparse
import itertools
import math
import string
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

try:
    import gguf
    from gguf import GGMLQuantizationType as QuantType
except ImportError:
    raise SystemExit("the package gguf is not installed; the extra bench has it: make bench") from None

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for when this file is run as a program

from bench.model_shapes import PRESETS, SHAPES, Latent, PerLayer, Shape, tensor_shapes
from ollama_engine.convert.metadata import add_value
from ollama_engine.convert.quant.layout import LayoutFacts, in_file_order, target_types
from ollama_engine.ml.gguf.gguf_file import TensorInfo

TEMPLATE = "{% for m in messages %}{{ m['content'] }}{% endfor %}"

# -- which tensors, of which type --------------------------------------------------------------------------------------


def base_type(preset: str) -> QuantType:
    """The type of most matrices."""
    return QuantType[PRESETS[preset].base.upper()]


def tensor_types(preset: str, shape: Shape, arch: str | None = None) -> dict[str, QuantType]:
    """The type that llama.cpp's preset gives to each tensor: vectors and routers stay f32, some matrices get more bits,
    and rows that do not divide into blocks of 256 get blocks of 32.
    """
    tensors = [TensorInfo(name, "f32", dims[::-1], 0, 0, 0) for name, dims in tensor_shapes(shape)]
    facts = LayoutFacts(arch or shape.arch, shape.n_layer, shape.n_head // shape.n_head_kv, shape.n_expert, False)
    found = target_types(in_file_order(tensors), PRESETS[preset], facts, has_imatrix=False)
    return {name: QuantType[dtype.upper()] for name, dtype in found.items()}


# -- random values -----------------------------------------------------------------------------------------------------


def random_tensor(rng: np.random.Generator, name: str, dims: tuple[int, ...], kind: QuantType) -> NDArray[Any]:
    """Matrices of variance 1 / row length, as the bytes or numbers that the file stores."""
    if name.endswith("ssm_a"):  # states decay
        return -rng.uniform(1, 16, dims).astype(np.float32)
    if len(dims) == 1 or name.endswith(".bias"):
        mean = 1.0 if "norm" in name else 0.0
        return (mean + 0.1 * rng.standard_normal(dims, dtype=np.float32)).astype(np.float32)
    deviation = dims[-1] ** -0.5
    if kind in (QuantType.F32, QuantType.F16, QuantType.BF16):
        return _random_floats(rng, dims, kind, deviation)
    return _random_blocks(rng, dims, kind, deviation)


def _random_floats(rng: np.random.Generator, dims: tuple[int, ...], kind: QuantType, deviation: float) -> NDArray[Any]:
    stored = {QuantType.F32: np.float32, QuantType.F16: np.float16, QuantType.BF16: np.uint16}[kind]
    floats = np.empty(dims, stored)
    for start in range(0, dims[0], 4096):  # in pieces, or an embedding would take its size thrice
        rows = floats[start : start + 4096]
        values = rng.standard_normal(rows.shape, dtype=np.float32) * np.float32(deviation)
        rows[:] = values.view(np.uint32) >> 16 if kind is QuantType.BF16 else values
    return floats.view(np.uint8) if kind is QuantType.BF16 else floats


@dataclass(frozen=True)
class Layout:
    """A block of ggml's: where its f16 scale lies, and what its values are when all other bits are random.

    Q4_K, for example: scale * sub-scale (0..63) * nibble - minimum * sub-minimum (0..63); 7.5 * scale as the minimum
    makes the mean 0.
    """

    scale_at: int
    deviation: float
    """Standard deviation of the values for a scale of 1."""
    minimum: float = 0.0
    """The f16 number behind the scale, for a scale of 1; 0: the type has none."""


_LAYOUT = {
    QuantType.Q4_0: Layout(0, 4.6),
    QuantType.Q4_1: Layout(0, 4.6, -7.5),
    QuantType.Q5_0: Layout(0, 9.2),
    QuantType.Q5_1: Layout(0, 9.2, -15.5),
    QuantType.Q8_0: Layout(0, 74.0),
    QuantType.Q2_K: Layout(80, 13.9, 1.5),
    QuantType.Q3_K: Layout(108, 43.3),
    QuantType.Q4_K: Layout(0, 258.0, 7.5),
    QuantType.Q5_K: Layout(0, 527.0, 15.5),
    QuantType.Q6_K: Layout(208, 1366.0),
    QuantType.IQ4_NL: Layout(0, 67.2),
    QuantType.IQ4_XS: Layout(0, 1246.0),
}
_MXFP4_DEVIATION = 2.92  # of 0, .5, 1, 1.5, 2, 3, 4 and 6, and their negatives


def _random_blocks(rng: np.random.Generator, dims: tuple[int, ...], kind: QuantType, deviation: float) -> NDArray[Any]:
    block, size = gguf.GGML_QUANT_SIZES[kind]
    n_blocks = math.prod(dims) // block
    blocks = np.frombuffer(bytearray(rng.bytes(n_blocks * size)), np.uint8).reshape(n_blocks, size)
    if kind is QuantType.MXFP4:  # one byte, the exponent of a power of two
        blocks[:, 0] = 127 + round(math.log2(deviation / _MXFP4_DEVIATION))
        return blocks.reshape(*dims[:-1], -1)
    layout = _LAYOUT[kind]
    scale = deviation / layout.deviation
    numbers = [scale] if layout.minimum == 0 else [scale, layout.minimum * scale]
    stored = np.array(numbers, np.float16).view(np.uint8)
    blocks[:, layout.scale_at : layout.scale_at + len(stored)] = stored
    return blocks.reshape(*dims[:-1], -1)


def rope_factors(shape: Shape) -> NDArray[np.float32]:
    """Llama 3's for training on 8192 positions, low and high frequency factors 1 and 4; Gemma 4's turn a quarter of a
    global head.
    """
    if shape.per_layer is not None:
        pairs = np.arange(shape.per_layer.global_dim // 2)
        return np.where(pairs < len(pairs) // 4, 1, 1e30).astype(np.float32)
    assert shape.rope_factor is not None
    wavelength = 2 * np.pi * shape.rope_base ** (2 * np.arange(shape.head_dim // 2) / shape.head_dim)
    smooth = np.clip((8192 / wavelength - 1) / (4 - 1), 0, 1)
    return (1 / ((1 - smooth) / shape.rope_factor + smooth)).astype(np.float32)


# -- metadata ----------------------------------------------------------------------------------------------------------


def vocabulary(n: int) -> tuple[list[str], list[str]]:
    """`n` tokens of byte-level BPE: the 256 bytes, then made-up words; and the merges of two letters."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = itertools.count(256)
    bytes_ = [chr(byte if byte in printable else next(others)) for byte in range(256)]
    starts, letters = [bytes_[ord(" ")], *string.ascii_lowercase], string.ascii_lowercase
    words = itertools.chain.from_iterable(itertools.product(starts, *[letters] * k) for k in (1, 2, 3))
    merges = [" ".join(pair) for pair in itertools.product(starts, letters)]
    tokens = [*bytes_, *("".join(word) for word in itertools.islice(words, max(0, n - 256)))]
    return tokens, merges[: n - 256]


def add_latent(writer: gguf.GGUFWriter, shape: Shape, latent: Latent) -> None:
    """What models with latent attention have in place of the usual sizes of heads, and about their experts."""
    writer.add_key_length(latent.n_latent + latent.n_rope)
    writer.add_value_length(latent.n_latent)
    writer.add_key_length_mla(shape.head_dim)
    writer.add_value_length_mla(latent.value_dim)
    writer.add_kv_lora_rank(latent.n_latent)
    writer.add_q_lora_rank(latent.n_narrow)
    writer.add_rope_dimension_count(latent.n_rope)
    writer.add_leading_dense_block_count(latent.n_dense)
    writer.add_expert_shared_count(latent.n_shared)
    writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SOFTMAX)


def add_per_layer(writer: gguf.GGUFWriter, shape: Shape, per_layer: PerLayer) -> None:
    """The sizes of global heads, and those of local ones under names of their own."""
    writer.add_key_length(per_layer.global_dim)
    writer.add_value_length(per_layer.global_dim)
    writer.add_rope_dimension_count(per_layer.global_dim)
    writer.add_key_length_swa(shape.head_dim)
    writer.add_value_length_swa(shape.head_dim)
    writer.add_rope_dimension_count_swa(shape.head_dim)
    writer.add_rope_freq_base_swa(10000.0)
    writer.add_sliding_window_pattern([not per_layer.is_global(i) for i in range(shape.n_layer)])
    writer.add_shared_kv_layers(per_layer.n_shared)
    writer.add_embedding_length_per_layer_input(per_layer.n_embd)
    writer.add_final_logit_softcapping(30.0)


def feed_forward_length(shape: Shape) -> int | list[int]:
    """The number that all layers have, or that of each."""
    if shape.per_layer is not None:
        own = shape.n_layer - shape.per_layer.n_shared
        return [shape.n_ff] * own + [2 * shape.n_ff] * shape.per_layer.n_shared
    return shape.n_ff if shape.latent is None else shape.latent.n_ff_dense


def add_metadata(writer: gguf.GGUFWriter, shape: Shape, preset: str) -> None:
    writer.add_name(f"random weights, {shape.name}")
    writer.add_file_type(PRESETS[preset].file_type)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    writer.add_vocab_size(shape.n_vocab)
    writer.add_context_length(shape.n_ctx)
    writer.add_embedding_length(shape.n_embd)
    writer.add_block_count(shape.n_layer)
    writer.add_feed_forward_length(feed_forward_length(shape))
    writer.add_head_count(shape.n_head)
    writer.add_head_count_kv(shape.n_head_kv)
    if shape.per_layer is not None:
        add_per_layer(writer, shape, shape.per_layer)
    elif shape.latent is None:
        writer.add_key_length(shape.head_dim)
        writer.add_value_length(shape.head_dim)
        writer.add_rope_dimension_count(shape.head_dim)
    else:
        add_latent(writer, shape, shape.latent)
    writer.add_rope_freq_base(shape.rope_base)
    writer.add_layer_norm_rms_eps(shape.norm_eps)
    if shape.n_expert:
        writer.add_expert_count(shape.n_expert)
        writer.add_expert_used_count(shape.n_expert_used)
        writer.add_expert_feed_forward_length(shape.n_ff)
    if shape.window:
        writer.add_sliding_window(shape.window)
    for key, value in shape.keys.items():
        add_value(writer, f"{writer.arch}.{key}", value)
    tokens, merges = vocabulary(shape.n_text_tokens)
    specials = [*shape.specials, *(f"<|special_{i}|>" for i in range(len(shape.specials), shape.n_special))]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("llama-bpe")
    writer.add_token_list(tokens + specials)
    writer.add_token_types([gguf.TokenType.NORMAL] * len(tokens) + [gguf.TokenType.CONTROL] * len(specials))
    writer.add_token_merges(merges)
    writer.add_bos_token_id(shape.bos)
    writer.add_eos_token_id(shape.eos)
    if shape.specials:  # llama-mtmd-cli reads pictures in chats only
        writer.add_chat_template(TEMPLATE)


# -- writing -----------------------------------------------------------------------------------------------------------


def write_random(
    writer: gguf.GGUFWriter, tensors: Iterable[tuple[str, tuple[int, ...]]],
    kind_of: Callable[[str, tuple[int, ...]], QuantType], *, seed: int,
) -> None:  # fmt: skip
    """Random values for tensors with these names and numpy shapes, of the types by `kind_of`; closes the file."""
    rng = np.random.Generator(np.random.SFC64(seed))
    for name, dims in tensors:
        kind = kind_of(name, dims)
        writer.add_tensor(name, random_tensor(rng, name, dims, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_model(path: str, shape: Shape, preset: str, *, arch: str | None = None, seed: int = 0) -> None:
    """Write the whole file; the same arguments give the same bytes. Shows progress on stderr."""
    writer = gguf.GGUFWriter(path, arch or shape.arch)
    add_metadata(writer, shape, preset)
    kinds = tensor_types(preset, shape, arch)
    sizes = {}
    for name, dims in tensor_shapes(shape):
        block, size = gguf.GGML_QUANT_SIZES[kinds[name]]
        sizes[name] = int(np.prod(dims)) // block * size
        writer.add_tensor_info(name, dims, np.dtype(np.float32), sizes[name], raw_dtype=kinds[name])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    rng = np.random.Generator(np.random.SFC64(seed))
    written, total = 0, sum(sizes.values())
    for name, dims in tensor_shapes(shape):
        is_rope = name == "rope_freqs.weight"
        writer.write_tensor_data(rope_factors(shape) if is_rope else random_tensor(rng, name, dims, kinds[name]))
        written += sizes[name]
        print(f"\r{path}: {written >> 20} of {total >> 20} MiB", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    writer.close()


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Write a GGUF model with random weights for speed measurements.")
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("type", type=str.lower, choices=PRESETS)
    parser.add_argument("out", metavar="OUT.gguf")
    parser.add_argument("--arch", choices=("llama", "qwen2"), help="general.architecture, instead of the shape's")
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args(arguments)
    write_model(chosen.out, SHAPES[chosen.shape], chosen.type, arch=chosen.arch, seed=chosen.seed)


if __name__ == "__main__":
    main()
