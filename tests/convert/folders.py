"""Folders as Hugging Face publishes models, tiny and made by hand: numpy, the safetensors package and JSON only."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import TensorSpec, serialize_file

from tests.models.reference import huggingface_weights
from tests.support.tiny import SPECIALS, TinyLlama, TinyModel, random_weights, tiny_vocabulary

Weights = Mapping[str, NDArray[Any]]

LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)


def write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False), encoding="utf-8")


def llama_config(tiny: TinyLlama, **more: Any) -> dict[str, Any]:
    """config.json of a tiny model as transformers 4 writes it; `more` replaces values, None removes one."""
    values: dict[str, Any] = {
        "architectures": ["MixtralForCausalLM" if tiny.n_expert else "LlamaForCausalLM"],
        "vocab_size": tiny.n_vocab,
        "hidden_size": tiny.n_embd,
        "intermediate_size": tiny.n_ff,
        "num_hidden_layers": tiny.n_layer,
        "num_attention_heads": tiny.n_head,
        "num_key_value_heads": tiny.n_head_kv,
        "head_dim": tiny.head_dim,
        "max_position_embeddings": tiny.n_ctx,
        "rms_norm_eps": tiny.norm_eps,
        "rope_theta": tiny.rope_base,
        "tie_word_embeddings": tiny.tied,
        "num_local_experts": tiny.n_expert or None,
        "num_experts_per_tok": tiny.n_expert_used if tiny.n_expert else None,
        "sliding_window": tiny.sliding_window,
        **more,
    }
    return {name: value for name, value in values.items() if value is not None}


def bpe_tokenizer(n_vocab: int, *, pairs: bool = False, split: str = LLAMA3_SPLIT) -> dict[str, Any]:
    """tokenizer.json of the vocabulary of tests.support.tiny. `pairs`: merges in the newer of their two forms."""
    tokens, merges = tiny_vocabulary(n_vocab)
    ordinary = tokens[: -len(SPECIALS)]
    added = [{"id": n_vocab - len(SPECIALS) + i, "content": text, "special": True, "normalized": False}
             for i, text in enumerate(SPECIALS)]  # fmt: skip
    splits = [
        {"type": "Split", "pattern": {"Regex": split}, "behavior": "Isolated", "invert": False},
        {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False},
    ]
    return {
        "added_tokens": added,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": splits},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": SPECIALS[0], "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        },
        "model": {
            "type": "BPE",
            "ignore_merges": True,
            "vocab": {text: id_ for id_, text in enumerate(ordinary)},
            "merges": [merge.split(" ") for merge in merges] if pairs else merges,
        },
    }


@dataclass
class HfFolder:
    """A tiny Llama, its files changed at will before `write`."""

    tiny: TinyLlama = field(default_factory=TinyLlama)
    dtype: str = "F32"
    config: dict[str, Any] = field(default_factory=dict)
    rename: Callable[[str], str] = str
    """The usual name of a tensor -> the one in the folder."""
    spoil: Mapping[str, float] = field(default_factory=dict)
    """The number that takes the place of a tensor's first."""
    files: dict[str, Any] = field(default_factory=dict)
    """JSON files by name; a value of None leaves one out."""

    def write(self, path: Path) -> Path:
        path.mkdir(parents=True, exist_ok=True)
        model = TinyModel("", self.tiny, random_weights(self.tiny))
        weights = {self.rename(name): values for name, values in huggingface_weights(model).items()}
        for name, number in self.spoil.items():
            weights[name] = weights[name].copy()
            weights[name].flat[0] = number
        write_safetensors(path / "model.safetensors", weights, self.dtype)
        files = {
            "config.json": llama_config(self.tiny, **self.config),
            "tokenizer.json": bpe_tokenizer(self.tiny.n_vocab),
            "tokenizer_config.json": {"bos_token": SPECIALS[0], "eos_token": SPECIALS[1]},
            **self.files,
        }
        for name, value in files.items():
            if value is not None:
                write_json(path / name, value)
        return path


def write_safetensors(path: Path, weights: Weights, dtype: str = "F32") -> None:
    """With the reference implementation; `dtype` F32, F16 or BF16 (cut off, not rounded) of those that are floats."""
    names = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
    entries, alive = {}, []
    for name, values in weights.items():
        floats = values.dtype.kind == "f"
        stored: NDArray[Any] = values.astype(np.float16 if dtype == "F16" else np.float32) if floats else values
        if floats and dtype == "BF16":
            stored = (stored.view(np.uint32) >> 16).astype(np.uint16)
        stored = np.ascontiguousarray(stored)
        alive.append(stored)
        entries[name] = TensorSpec(
            dtype=names[dtype] if floats else values.dtype.name,
            shape=values.shape,
            data_ptr=stored.ctypes.data,
            data_len=stored.nbytes,
        )
    serialize_file(entries, str(path), {"format": "pt"})
