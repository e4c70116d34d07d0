"""Gemma 4's assistant as a drafter: a made pair whose assistant agrees, measured by `bench/heads.py`.

    python bench/assistants.py OUT.gguf ASSISTANT.gguf [--type q4_k_m] [--scale 0.0003] [--vocab 65536]
    python bench/heads.py measure OUT.gguf --assistant ASSISTANT.gguf

Shapes are those of Gemma 4 E2B and its assistant, with fewer tokens. Blocks change little of the stream (`--scale`, in
the norms behind them), so that the next token follows from the last one, and the assistant passes on its embedding.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType as QuantType
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for when this file is run as a program

from bench.make_model import add_metadata, random_tensor, rope_factors, tensor_types
from bench.model_shapes import PRESETS, SHAPES, Dims, PerLayer, Shape, tensor_shapes

ONES = ("output_norm.weight", "layer_output_scale.weight")
BEHIND = ("post_attention_norm.weight", "post_ffw_norm.weight", "post_norm.weight")
"""The norms of what is added to the stream."""
N_LAYER, N_EMBD, N_FF, N_HEAD = 4, 256, 2048, 4
"""Sizes of the assistant of E2B and E4B."""


def assistant_shape(model: Shape) -> Shape:
    """The assistant's, with the model's tokens and heads."""
    assert model.per_layer is not None
    return replace(
        model, name=f"{model.name}, assistant", arch="gemma4-assistant", n_layer=N_LAYER, n_embd=N_EMBD, n_ff=N_FF,
        n_head=N_HEAD, per_layer=PerLayer(0, 0, model.per_layer.global_dim, N_LAYER),
        keys={"embedding_length_out": model.n_embd, "nextn_predict_layers": N_LAYER},
    )  # fmt: skip


def assistant_tensors(shape: Shape) -> Iterator[tuple[str, Dims]]:
    """(name, numpy shape) of what an assistant has."""
    assert shape.per_layer is not None
    out = shape.keys["embedding_length_out"]
    assert isinstance(out, int)
    yield "token_embd.weight", (shape.n_vocab, shape.n_embd)
    yield "rope_freqs.weight", (shape.per_layer.global_dim // 2,)
    yield "output_norm.weight", (shape.n_embd,)
    yield "nextn.pre_projection.weight", (shape.n_embd, 2 * out)
    yield "nextn.post_projection.weight", (out, shape.n_embd)
    left_out = ("attn_k", "attn_v", "attn_k_norm", "inp_gate", "proj", "post_norm")
    for name, dims in tensor_shapes(shape):
        if name.startswith("blk.") and name.split(".")[2] not in left_out:
            yield name, dims


def written(writer: gguf.GGUFWriter, tensors: Iterator[tuple[str, NDArray[Any], QuantType]]) -> None:
    """Write a file."""
    for name, values, kind in tensors:
        writer.add_tensor(name, values, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def model_values(shape: Shape, preset: str, scale: float) -> Iterator[tuple[str, NDArray[Any], QuantType]]:
    """The model's tensors, of types by the preset."""
    rng, kinds = np.random.Generator(np.random.SFC64(0)), tensor_types(preset, shape)
    for name, dims in tensor_shapes(shape):
        values = rope_factors(shape) if name == "rope_freqs.weight" else random_tensor(rng, name, dims, kinds[name])
        if name.endswith(BEHIND):
            values = values * np.float32(scale)
        yield name, np.ones(dims, np.float32) if name.endswith(ONES) else values, kinds[name]


def assistant_values(shape: Shape, path: str, scale: float) -> Iterator[tuple[str, NDArray[Any], QuantType]]:
    """The assistant's tensors, matrices in Q8_0. It reads the first numbers of the model's embeddings, from `path`."""
    (table,) = (tensor for tensor in gguf.GGUFReader(path).tensors if tensor.name == "token_embd.weight")
    rng = np.random.Generator(np.random.SFC64(1))
    for name, dims in assistant_tensors(shape):
        kind = QuantType.Q8_0 if len(dims) > 1 else QuantType.F32
        if name == "token_embd.weight":
            embeddings = gguf.quants.dequantize(table.data, table.tensor_type)[:, : shape.n_embd]
            values: NDArray[Any] = gguf.quants.quantize(np.ascontiguousarray(embeddings), kind)
        elif name == "nextn.pre_projection.weight":
            values = gguf.quants.quantize(np.eye(*dims, dtype=np.float32), kind)
        elif name == "rope_freqs.weight":
            values = rope_factors(shape)
        elif name.endswith(ONES):
            values = np.ones(dims, np.float32)
        else:
            values = random_tensor(rng, name, dims, kind) * (np.float32(scale) if name.endswith(BEHIND) else 1)
        yield name, values.astype(values.dtype if kind is QuantType.Q8_0 else np.float32), kind


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", metavar="OUT.gguf")
    parser.add_argument("assistant", metavar="ASSISTANT.gguf")
    parser.add_argument("--type", type=str.lower, choices=PRESETS, default="q4_k_m")
    parser.add_argument("--scale", type=float, default=0.0003)
    parser.add_argument("--vocab", type=int, default=65536)
    args = parser.parse_args()
    shape = SHAPES["gemma4-e2b"]
    text = shape.n_vocab - shape.n_special
    shape = replace(shape, n_vocab=args.vocab, n_special=args.vocab - text)
    writer = gguf.GGUFWriter(args.path, shape.arch)
    add_metadata(writer, shape, args.type)
    written(writer, model_values(shape, args.type, args.scale))
    small = assistant_shape(shape)
    writer = gguf.GGUFWriter(args.assistant, small.arch)
    add_metadata(writer, small, "q8_0")
    written(writer, assistant_values(small, args.path, args.scale))


if __name__ == "__main__":
    main()
