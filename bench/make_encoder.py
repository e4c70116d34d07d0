"""Write a GGUF encoder with the shape of a real one and random weights.

    python bench/make_encoder.py minilm f16 OUT.gguf

For speed measurements, as `make_model` does it for models that write. Needs the extra `bench` (the gguf package).
"""

from __future__ import annotations

import argparse
import itertools
import string
from collections.abc import Iterator
from dataclasses import dataclass

import gguf
import numpy as np
from gguf import GGMLQuantizationType as QuantType

if __package__ in (None, ""):  # run as a program
    import sys
    from pathlib import Path

    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.make_model import base_type, write_random
from bench.model_shapes import PRESETS

MARKS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
PLAIN = ("f32", "f16", "bf16", "q8_0")
"""The presets that give all matrices one type."""


@dataclass(frozen=True)
class EncoderShape:
    """A BERT, with `gated` a Nomic BERT, with `head_dim` an EmbeddingGemma; sizes have the meaning of the GGUF keys."""

    name: str
    n_layer: int
    n_embd: int
    n_ff: int
    n_head: int
    n_ctx: int
    n_vocab: int = 30522
    gated: bool = False
    head_dim: int = 0
    """The size of a head; there is one of keys and values."""

    @property
    def arch(self) -> str:
        return "gemma-embedding" if self.head_dim else "nomic-bert" if self.gated else "bert"


SHAPES = {
    "minilm": EncoderShape("all-MiniLM-L6 shape", n_layer=6, n_embd=384, n_ff=1536, n_head=12, n_ctx=512),
    "bert-base": EncoderShape("BERT base shape", n_layer=12, n_embd=768, n_ff=3072, n_head=12, n_ctx=512),
    "nomic": EncoderShape(
        "Nomic Embed Text shape", n_layer=12, n_embd=768, n_ff=3072, n_head=12, n_ctx=2048, gated=True
    ),
    "gemma": EncoderShape(
        "EmbeddingGemma 300M shape", n_layer=24, n_embd=768, n_ff=1152, n_head=3, n_ctx=2048, head_dim=256
    ),
}
"""EmbeddingGemma has the small vocabulary of the others: looking a token up takes no time, and 400 MB less."""


def tensor_shapes(shape: EncoderShape) -> Iterator[tuple[str, tuple[int, ...]]]:
    """(name, numpy shape) in the order of the file."""
    n = shape.n_embd
    yield "token_embd.weight", (shape.n_vocab, n)
    if shape.head_dim:
        yield from _gemma(shape)
        return
    yield "token_types.weight", (2, n)
    if not shape.gated:
        yield "position_embd.weight", (shape.n_ctx, n)
    yield from _norm("token_embd_norm", n)
    for i in range(shape.n_layer):
        for name, dims in _matrices(shape):
            yield f"blk.{i}.{name}.weight", dims
            if not shape.gated:
                yield f"blk.{i}.{name}.bias", dims[:1]
        yield from _norm(f"blk.{i}.attn_output_norm", n)
        yield from _norm(f"blk.{i}.layer_output_norm", n)


def _gemma(shape: EncoderShape) -> Iterator[tuple[str, tuple[int, ...]]]:
    n, ff, d, heads = shape.n_embd, shape.n_ff, shape.head_dim, shape.n_head * shape.head_dim
    yield "output_norm.weight", (n,)
    for i in range(shape.n_layer):
        for name, dims in (("attn_q", (heads, n)), ("attn_k", (d, n)), ("attn_v", (d, n)), ("attn_output", (n, heads)),
                           ("ffn_gate", (ff, n)), ("ffn_up", (ff, n)), ("ffn_down", (n, ff)),
                           ("attn_q_norm", (d,)), ("attn_k_norm", (d,)), ("attn_norm", (n,)), ("ffn_norm", (n,)),
                           ("post_attention_norm", (n,)), ("post_ffw_norm", (n,))):  # fmt: skip
            yield f"blk.{i}.{name}.weight", dims
    yield "dense_2.weight", (4 * n, n)
    yield "dense_3.weight", (n, 4 * n)


def _matrices(shape: EncoderShape) -> list[tuple[str, tuple[int, int]]]:
    n, ff = shape.n_embd, shape.n_ff
    if shape.gated:
        queries = [("attn_qkv", (3 * n, n))]
        gate = [("ffn_gate", (ff, n))]
    else:
        queries = [("attn_q", (n, n)), ("attn_k", (n, n)), ("attn_v", (n, n))]
        gate = []
    return [*queries, ("attn_output", (n, n)), *gate, ("ffn_up", (ff, n)), ("ffn_down", (n, ff))]


def _norm(name: str, n: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield f"{name}.weight", (n,)
    yield f"{name}.bias", (n,)


def vocabulary(n: int) -> list[str]:
    """`n` WordPiece tokens: the marks, each letter as a beginning and as a rest, then words of three letters."""
    letters = string.ascii_lowercase
    words = ("\u2581" + "".join(word) for word in itertools.product(letters, repeat=3))
    rests = ("".join(word) for word in itertools.product(letters, repeat=4))
    every = itertools.chain(MARKS, ("\u2581" + letter for letter in letters), letters, words, rests)
    return list(itertools.islice(every, n))


def text_of(n_tokens: int, seed: int) -> str:
    """A text of so many tokens, the first and the last mark included, for these vocabularies."""
    picked = np.random.default_rng(seed).integers(0, 26, (n_tokens - 2, 3))
    return " ".join("".join(string.ascii_lowercase[i] for i in word) for word in picked.tolist())


def _add_metadata(writer: gguf.GGUFWriter, shape: EncoderShape, preset: str) -> None:
    writer.add_name(f"random weights, {shape.name}")
    writer.add_file_type(PRESETS[preset].file_type)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    writer.add_context_length(shape.n_ctx)
    writer.add_embedding_length(shape.n_embd)
    writer.add_block_count(shape.n_layer)
    writer.add_feed_forward_length(shape.n_ff)
    writer.add_head_count(shape.n_head)
    if shape.head_dim:
        _add_gemma(writer, shape)
    else:
        writer.add_layer_norm_eps(1e-12)
    writer.add_causal_attention(False)
    writer.add_pooling_type(gguf.PoolingType.MEAN)
    if shape.gated:
        writer.add_rope_freq_base(1000.0)
    tokens = vocabulary(shape.n_vocab)
    kinds = [gguf.TokenType.CONTROL if text in MARKS else gguf.TokenType.NORMAL for text in tokens]
    writer.add_tokenizer_model("bert")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_type_count(2)
    for add, mark in (
        (writer.add_pad_token_id, "[PAD]"), (writer.add_unk_token_id, "[UNK]"), (writer.add_bos_token_id, "[CLS]"),
        (writer.add_eos_token_id, "[SEP]"), (writer.add_sep_token_id, "[SEP]"), (writer.add_mask_token_id, "[MASK]"),
    ):  # fmt: skip
        add(MARKS.index(mark))


def _add_gemma(writer: gguf.GGUFWriter, shape: EncoderShape) -> None:
    writer.add_head_count_kv(1)
    writer.add_key_length(shape.head_dim)
    writer.add_value_length(shape.head_dim)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_sliding_window(512)
    writer.add_sliding_window_pattern(6)
    writer.add_rope_freq_base(1e6)
    writer.add_dense_features_dims("dense_2", shape.n_embd, 4 * shape.n_embd)
    writer.add_dense_features_dims("dense_3", 4 * shape.n_embd, shape.n_embd)


def write_encoder(path: str, shape: EncoderShape, preset: str, *, seed: int = 0) -> None:
    """Write the whole file; the same arguments give the same bytes."""
    writer = gguf.GGUFWriter(path, shape.arch)
    _add_metadata(writer, shape, preset)
    kept = ("token_types", "position_embd")  # converters leave them as they are

    def kind(name: str, dims: tuple[int, ...]) -> QuantType:
        return base_type(preset) if len(dims) == 2 and not name.startswith(kept) else QuantType.F32

    write_random(writer, tensor_shapes(shape), kind, seed=seed)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Write a GGUF encoder with random weights for speed measurements.")
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("type", type=str.lower, choices=PLAIN)
    parser.add_argument("out", metavar="OUT.gguf")
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args(arguments)
    write_encoder(chosen.out, SHAPES[chosen.shape], chosen.type, seed=chosen.seed)


if __name__ == "__main__":
    main()
