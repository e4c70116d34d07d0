"""Models without weights to speak of: names, shapes and counts, which are all that the choice of types looks at.

A shell can be written as a GGUF that llama-quantize reads; make_goldens does. Rows are few, so that files are small.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import gguf
import numpy as np

from ollama_engine.convert.quant.layout import LayoutFacts, in_file_order
from ollama_engine.ml.gguf.gguf_file import TensorInfo

ROWS = 2


@dataclass(frozen=True)
class Shell:
    """`lengths`: row lengths of tensors by a part of their name, for rows that do not divide into blocks."""

    name: str
    architecture: str = "llama"
    n_layer: int = 18
    n_head: int = 8
    n_head_kv: int = 4
    n_expert: int = 0
    tied: bool = False
    fused: bool = False
    lengths: Mapping[str, int] = field(default_factory=dict)

    @property
    def facts(self) -> LayoutFacts:
        grouped = self.n_head != self.n_head_kv
        return LayoutFacts(
            self.architecture, self.n_layer, self.n_head // self.n_head_kv, self.n_expert,
            is_70b=self.n_layer == 80 and (grouped or self.architecture == "qwen2"),
        )  # fmt: skip

    def tensors(self) -> list[TensorInfo]:
        """In the order of a quantized file."""
        infos = []
        for name, shape in self.shapes():
            dtype = "f32" if len(shape) == 1 else "f16"
            infos.append(TensorInfo(name, dtype, shape, 0, 0, 0))
        return in_file_order(infos)

    def shapes(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Names and shapes in ggml's order."""
        yield "token_embd.weight", (self._length("token_embd"), ROWS)
        yield "output_norm.weight", (self._length("norm"),)
        if not self.tied:
            yield "output.weight", (self._length("output.weight"), ROWS)
        for i in range(self.n_layer):
            for name in self._layer():
                experts = (self.n_expert,) if "_exps" in name else ()
                rows = () if "norm" in name else (ROWS,)
                yield f"blk.{i}.{name}.weight", (self._length(name), *rows, *experts)

    def _length(self, name: str) -> int:
        return next((n for part, n in self.lengths.items() if part in name), 256)

    def _layer(self) -> tuple[str, ...]:
        attention = ("attn_qkv",) if self.fused else ("attn_q", "attn_k", "attn_v")
        parts = ("ffn_gate", "ffn_up", "ffn_down")
        ffn = ("ffn_gate_inp", *(f"{part}_exps" for part in parts)) if self.n_expert else parts
        return ("attn_norm", *attention, "attn_output", "ffn_norm", *ffn)

    def write(self, path: Path) -> Path:
        """A file whose weights are all 0."""
        writer = gguf.GGUFWriter(path, self.architecture)
        writer.add_block_count(self.n_layer)
        writer.add_context_length(64)
        writer.add_embedding_length(256)
        writer.add_feed_forward_length(256)
        writer.add_head_count(self.n_head)
        writer.add_head_count_kv(self.n_head_kv)
        writer.add_layer_norm_rms_eps(1e-5)
        writer.add_layer_norm_eps(1e-5)
        if self.n_expert:
            writer.add_expert_count(self.n_expert)
            writer.add_expert_used_count(2)
        for name, shape in self.shapes():
            writer.add_tensor(name, np.zeros(shape[::-1], np.float32 if len(shape) == 1 else np.float16))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path


SHELLS = (
    Shell("plain"),
    Shell("many-queries", n_head_kv=2, n_layer=33),
    Shell("tied", tied=True),
    Shell("70b", n_layer=80),
    Shell("65b", n_layer=80, n_head_kv=8),
    Shell("qwen2-72b", architecture="qwen2", n_layer=80, n_head_kv=8),
    Shell("fused", architecture="phi3", fused=True, n_head_kv=8),
    Shell("falcon", architecture="falcon", fused=True, n_head_kv=8, n_layer=32),
    Shell("four-experts", n_expert=4),
    Shell("eight-experts", n_expert=8),
    Shell("odd-rows", lengths={"ffn_down": 96, "attn_output": 80, "token_embd": 288, "output.weight": 288}),
    Shell("odd-tied", tied=True, lengths={"token_embd": 40, "attn_v": 96, "ffn_down": 32}),
)
