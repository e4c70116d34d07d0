"""Tiny llama models with random weights, written where a test wants them.

    model = write_tiny_llama(tmp_path / "tiny.gguf", n_head_kv=1, tied=True)

The file loads in any GGUF engine: it carries a byte-level BPE vocabulary that can spell every text. The weights come
back as the engine sees them (after rounding to `dtype`), so that a test can compute what to expect.
"""

from __future__ import annotations

import itertools
import os
import string
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType as QuantType
from numpy.typing import NDArray

from ollama_engine.ml.weights.quantize import quantize_rows
from tests.support.gguf_files import write_and_close

Weights = dict[str, NDArray[np.float32]]

SPECIALS = ("<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>")


@dataclass(frozen=True)
class TinyLlama:
    """What to write; every field can be given to `write_tiny_llama` by name.

    Sizes have GGUF's meaning. `head_dim` None is n_embd / n_head. `rope_freqs` True writes llama3's factors for a
    context stretched 8 times; an array is written as it is. `rope_scaling` is written below `rope.scaling.`, for
    instance {"type": "yarn", "factor": 4.0, "original_context_length": 64}. `n_expert` > 0 makes a Mixtral.
    `metadata` adds or replaces keys, None removes one. `tensors` likewise, written in the type that the array has.
    """

    n_layer: int = 2
    n_embd: int = 64
    n_head: int = 4
    n_head_kv: int = 2
    head_dim: int | None = None
    n_ff: int = 96
    n_vocab: int = 320
    n_ctx: int = 512
    tied: bool = False
    biases: bool = False
    n_expert: int = 0
    n_expert_used: int = 2
    sliding_window: int | None = None
    rope_base: float = 10000.0
    rope_freqs: bool | NDArray[np.float32] = False
    rope_scaling: Mapping[str, str | int | float] = field(default_factory=dict)
    norm_eps: float = 1e-5
    dtype: str = "f32"
    seed: int = 0
    metadata: Mapping[str, Any] = field(default_factory=dict)
    tensors: Mapping[str, NDArray[Any] | None] = field(default_factory=dict)

    @property
    def d(self) -> int:
        """Size of an attention head."""
        return self.head_dim or self.n_embd // self.n_head


@dataclass(frozen=True)
class TinyModel:
    """What was written. Weights have numpy's order of dimensions: [out, in], the reverse of ggml's."""

    path: str
    config: TinyLlama
    weights: Weights


def write_tiny_llama(path: str | os.PathLike[str], **overrides: Any) -> TinyModel:
    """Write a llama-architecture GGUF of about 300 KB; `overrides` are fields of TinyLlama."""
    config = replace(TinyLlama(), **overrides)
    weights = random_weights(config)
    writer = gguf.GGUFWriter(os.fspath(path), "llama")
    for key, value in _metadata(config).items():
        _add_value(writer, key, value)
    seen = {n: _add_tensor(writer, n, w, config.dtype) for n, w in weights.items() if n not in config.tensors}
    for name, tensor in config.tensors.items():
        if tensor is not None:
            writer.add_tensor(name, tensor)
            seen[name] = tensor.astype(np.float32)
    write_and_close(writer)
    return TinyModel(os.fspath(path), config, seen)


# -- vocabulary --------------------------------------------------------------------------------------------------------


def byte_characters() -> list[str]:
    """The printable character that byte-level BPE writes for each of the 256 bytes (as GPT-2 defined it)."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = itertools.count(256)
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


def tiny_vocabulary(n_vocab: int) -> tuple[list[str], list[str]]:
    """(tokens, merges): the 256 bytes in order, pairs of letters, longer runs as needed, SPECIALS last."""
    n_merges = n_vocab - 256 - len(SPECIALS)
    if n_merges < 0:
        raise ValueError(f"n_vocab={n_vocab}, expected at least {256 + len(SPECIALS)}")
    letters = [byte_characters()[ord(" ")], *string.ascii_lowercase]
    pairs = itertools.product(letters, string.ascii_lowercase)
    triples = itertools.product(("".join(pair) for pair in itertools.product(letters, string.ascii_lowercase)), letters)
    merges = [" ".join(pair) for pair in itertools.islice(itertools.chain(pairs, triples), n_merges)]
    return [*byte_characters(), *(merge.replace(" ", "") for merge in merges), *SPECIALS], merges


def _vocabulary_metadata(n_vocab: int) -> dict[str, Any]:
    tokens, merges = tiny_vocabulary(n_vocab)
    normal, control = gguf.TokenType.NORMAL, gguf.TokenType.CONTROL
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "llama-bpe",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [int(control if token in SPECIALS else normal) for token in tokens],
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": n_vocab - 3,
        "tokenizer.ggml.eos_token_id": n_vocab - 2,
        "tokenizer.ggml.eot_token_id": n_vocab - 1,
        "tokenizer.ggml.add_bos_token": True,
    }


# -- metadata ----------------------------------------------------------------------------------------------------------


def _metadata(config: TinyLlama) -> dict[str, Any]:
    values: dict[str, Any] = {
        "general.name": "tiny",
        "llama.vocab_size": config.n_vocab,
        "llama.context_length": config.n_ctx,
        "llama.embedding_length": config.n_embd,
        "llama.block_count": config.n_layer,
        "llama.feed_forward_length": config.n_ff,
        "llama.attention.head_count": config.n_head,
        "llama.attention.head_count_kv": config.n_head_kv,
        "llama.attention.layer_norm_rms_epsilon": config.norm_eps,
        "llama.attention.key_length": config.d,
        "llama.attention.value_length": config.d,
        "llama.rope.dimension_count": config.d,
        "llama.rope.freq_base": config.rope_base,
        "llama.expert_count": config.n_expert or None,
        "llama.expert_used_count": config.n_expert_used if config.n_expert else None,
        "llama.attention.sliding_window": config.sliding_window,
        **{f"llama.rope.scaling.{key}": value for key, value in config.rope_scaling.items()},
        **_vocabulary_metadata(config.n_vocab),
        **config.metadata,
    }
    return {key: value for key, value in values.items() if value is not None}


def _add_value(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    elif len(value):
        writer.add_array(key, value)


# -- weights -----------------------------------------------------------------------------------------------------------


def random_weights(config: TinyLlama) -> Weights:
    """float32 weights by GGUF tensor name, scaled so that activations stay near 1 through the layers."""
    rng = np.random.default_rng(config.seed)

    def matrix(*shape: int) -> NDArray[np.float32]:
        return (rng.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)

    def norm() -> NDArray[np.float32]:
        return (1 + 0.1 * rng.standard_normal(config.n_embd)).astype(np.float32)

    weights = {"token_embd.weight": matrix(config.n_vocab, config.n_embd) * np.float32(np.sqrt(config.n_embd))}
    for i in range(config.n_layer):
        block = {"attn_norm.weight": norm(), **_attention(config, matrix), "ffn_norm.weight": norm()}
        block |= _experts(config, matrix) if config.n_expert else _feed_forward(config, matrix)
        weights |= {f"blk.{i}.{name}": weight for name, weight in block.items()}
    weights["output_norm.weight"] = norm()
    if not config.tied:
        weights["output.weight"] = matrix(config.n_vocab, config.n_embd)
    if config.rope_freqs is not False:
        given = config.rope_freqs
        weights["rope_freqs.weight"] = llama3_factors(config) if given is True else np.asarray(given, np.float32)
    return weights


def _attention(config: TinyLlama, matrix: Any) -> Weights:
    q, kv, embd = config.n_head * config.d, config.n_head_kv * config.d, config.n_embd
    shapes = {"attn_q": (q, embd), "attn_k": (kv, embd), "attn_v": (kv, embd), "attn_output": (embd, q)}
    weights = {f"{name}.weight": matrix(*shape) for name, shape in shapes.items()}
    if config.biases:
        weights |= {f"{name}.bias": matrix(1, shape[0])[0] for name, shape in shapes.items()}
    return weights


def _feed_forward(config: TinyLlama, matrix: Any) -> Weights:
    return {
        "ffn_gate.weight": matrix(config.n_ff, config.n_embd),
        "ffn_up.weight": matrix(config.n_ff, config.n_embd),
        "ffn_down.weight": matrix(config.n_embd, config.n_ff),
    }


def _experts(config: TinyLlama, matrix: Any) -> Weights:
    return {
        "ffn_gate_inp.weight": matrix(config.n_expert, config.n_embd) * np.float32(4),
        "ffn_gate_exps.weight": matrix(config.n_expert, config.n_ff, config.n_embd),
        "ffn_up_exps.weight": matrix(config.n_expert, config.n_ff, config.n_embd),
        "ffn_down_exps.weight": matrix(config.n_expert, config.n_embd, config.n_ff),
    }


def llama3_factors(config: TinyLlama, factor: float = 8.0, low: float = 1.0, high: float = 4.0) -> NDArray[np.float32]:
    """Llama 3's rope factors [d / 2] for a model trained on n_ctx / factor positions (Llama 3.1 model card)."""
    original = config.n_ctx / factor
    wavelength = 2 * np.pi * config.rope_base ** (2 * np.arange(config.d // 2) / config.d)
    smooth = np.clip((original / wavelength - low) / (high - low), 0, 1)
    return (1 / ((1 - smooth) / factor + smooth)).astype(np.float32)


def _add_tensor(writer: gguf.GGUFWriter, name: str, weight: NDArray[np.float32], dtype: str) -> NDArray[np.float32]:
    """Store as real converters do: vectors and expert routers stay f32. Returns what the file holds."""
    kind = QuantType[dtype.upper()]
    if weight.ndim == 1 or name.endswith("ffn_gate_inp.weight") or kind is QuantType.F32:
        writer.add_tensor(name, weight)
        return weight
    stored = _OTHERS.get(kind, lambda w: gguf.quants.quantize(w, kind))(weight)
    writer.add_tensor(name, stored, raw_dtype=kind)
    return gguf.quants.dequantize(stored, kind)


def _quantize_q4_k(weight: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Q4_K in its simplest form, since gguf has none: all sub-blocks of 256 values share one scale and minimum.

    A value is d * 32 * nibble - dmin * 32, with dmin = 7.5 d; 32 is written in the packed 6-bit form of the scales.
    """
    blocks = weight.reshape(-1, 256)
    d = (np.abs(blocks).max(axis=1, keepdims=True) / (32 * 7.5)).astype(np.float16)
    nibbles = np.clip(np.rint(blocks / (32 * d.astype(np.float32)) + 7.5), 0, 15).astype(np.uint8).reshape(-1, 4, 2, 32)
    scales = np.tile(np.array([160] * 8 + [0] * 4, np.uint8), (len(blocks), 1))
    halves = np.hstack([d, (7.5 * d.astype(np.float32)).astype(np.float16)]).view(np.uint8)
    packed = (nibbles[:, :, 0] | nibbles[:, :, 1] << 4).reshape(len(blocks), 128)
    return np.hstack([halves, scales, packed]).reshape(*weight.shape[:-1], -1)


def _quantize_iq4_nl(weight: NDArray[np.float32]) -> NDArray[np.uint8]:
    block, size = gguf.GGML_QUANT_SIZES[QuantType.IQ4_NL]
    stored = np.empty((*weight.shape[:-1], weight.shape[-1] // block * size), np.uint8)
    quantize_rows("iq4_nl", weight.reshape(-1, weight.shape[-1]), stored.reshape(-1))
    return stored


_OTHERS = {QuantType.Q4_K: _quantize_q4_k, QuantType.IQ4_NL: _quantize_iq4_nl}
"""Types that the gguf package does not make."""
