"""Writes the trained demo model as GGUF: llama architecture, Q8_0 matrices, F32 gains; same input, same bytes.

Run from `examples/`: `python -m demo_model.export ../build/demo_model ../ollama_engine/demo/demo.gguf`.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch

from .documents import CHAT_TEMPLATE, SPECIAL_TOKENS
from .model import Shape
from .tokens import BEGIN, END, END_OF_TURN

MAX_BYTES = 8_000_000


def main() -> None:
    """Read `model.pt` and `tokenizer.json`, write the GGUF, check its size."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split(";", maxsplit=1)[0])
    parser.add_argument("folder", type=Path, help="what train.py wrote")
    parser.add_argument("gguf", type=Path, help="the file to write")
    args = parser.parse_args()
    saved = torch.load(args.folder / "model.pt", weights_only=True)
    tokenizer = json.loads((args.folder / "tokenizer.json").read_text(encoding="utf-8"))
    write(args.gguf, Shape(**saved["shape"]), saved["weights"], tokenizer)
    size = args.gguf.stat().st_size
    if size > MAX_BYTES:
        raise SystemExit(
            f"{args.gguf} has {size} bytes, more than the {MAX_BYTES} it may have: make the network smaller"
        )
    print(f"{args.gguf}: {size} bytes")


def write(path: Path, shape: Shape, weights: dict[str, torch.Tensor], tokenizer: dict[str, Any]) -> None:
    """Write one GGUF; the weights carry GGUF's names already, and no rows need permuting (see `model`)."""
    writer = gguf.GGUFWriter(path, "llama")
    _write_hyperparameters(writer, shape)
    _write_tokenizer(writer, tokenizer)
    for name, weight in sorted(weights.items()):
        _write_tensor(writer, name, weight.float().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _write_hyperparameters(writer: gguf.GGUFWriter, shape: Shape) -> None:
    writer.add_name("ollama_engine demo stories")
    writer.add_description("A small llama trained on procedurally generated short stories; see examples/demo_model.")
    writer.add_license("mit")
    writer.add_languages(["en"])
    writer.add_block_count(shape.n_layer)
    writer.add_context_length(shape.n_ctx)
    writer.add_embedding_length(shape.n_embd)
    writer.add_feed_forward_length(shape.n_ff)
    writer.add_head_count(shape.n_head)
    writer.add_head_count_kv(shape.n_head_kv)
    writer.add_key_length(shape.head_dim)
    writer.add_value_length(shape.head_dim)
    writer.add_layer_norm_rms_eps(shape.rms_eps)
    writer.add_rope_freq_base(shape.rope_base)
    writer.add_rope_dimension_count(shape.head_dim)
    writer.add_vocab_size(shape.n_vocab)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)


def _write_tokenizer(writer: gguf.GGUFWriter, tokenizer: dict[str, Any]) -> None:
    ids: dict[str, int] = dict(tokenizer["model"]["vocab"])
    ids |= {token["content"]: token["id"] for token in tokenizer["added_tokens"]}
    tokens = sorted(ids, key=ids.__getitem__)
    if [ids[token] for token in tokens] != list(range(len(tokens))):
        raise ValueError("the tokenizer's ids have gaps")
    control, normal = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("llama-bpe")
    writer.add_token_list(tokens)
    writer.add_token_types([control if token in SPECIAL_TOKENS else normal for token in tokens])
    writer.add_token_merges([" ".join(pair) for pair in tokenizer["model"]["merges"]])
    writer.add_bos_token_id(ids[BEGIN])
    writer.add_eos_token_id(ids[END])
    writer.add_eot_token_id(ids[END_OF_TURN])
    writer.add_add_bos_token(True)
    writer.add_chat_template(CHAT_TEMPLATE)


def _write_tensor(writer: gguf.GGUFWriter, name: str, weight: np.ndarray[Any, np.dtype[np.float32]]) -> None:
    if weight.ndim == 1:
        writer.add_tensor(name, weight)
        return
    kind = gguf.GGMLQuantizationType.Q8_0
    writer.add_tensor(name, gguf.quants.quantize(weight, kind), raw_dtype=kind)


if __name__ == "__main__":
    main()
