"""The packaged demo model: present, small, and a complete llama GGUF with a tokenizer and a chat template."""

from __future__ import annotations

import pytest
from gguf import GGUFReader

from ollama_engine import demo

MAX_BYTES = 8_000_000


@pytest.fixture(scope="module")
def reader() -> GGUFReader:
    return GGUFReader(demo.path())


def test_is_a_small_plain_file() -> None:
    path = demo.path()
    assert path.is_file()
    assert not path.is_symlink()
    assert path.stat().st_size <= MAX_BYTES


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("general.architecture", "llama"),
        ("general.license", "mit"),
        ("llama.context_length", 1024),
        ("tokenizer.ggml.model", "gpt2"),
        ("tokenizer.ggml.pre", "llama-bpe"),
        ("tokenizer.ggml.add_bos_token", True),
    ],
)
def test_metadata(reader: GGUFReader, key: str, value: object) -> None:
    assert reader.fields[key].contents() == value


def test_special_tokens_are_control_tokens(reader: GGUFReader) -> None:
    tokens = reader.fields["tokenizer.ggml.tokens"].contents()
    types = reader.fields["tokenizer.ggml.token_type"].contents()
    expected = {"bos": "<|begin_of_text|>", "eos": "<|end_of_text|>", "eot": "<|eot_id|>"}
    for name, token in expected.items():
        assert tokens[reader.fields[f"tokenizer.ggml.{name}_token_id"].contents()] == token
    assert [token for token, kind in zip(tokens, types, strict=True) if kind == 3] == [
        "<|begin_of_text|>",
        "<|end_of_text|>",
        "<|start_header_id|>",
        "<|end_header_id|>",
        "<|eot_id|>",
    ]


def test_chat_template_speaks_llama_3(reader: GGUFReader) -> None:
    template = reader.fields["tokenizer.chat_template"].contents()
    assert "<|start_header_id|>" in template
    assert "<|eot_id|>" in template
    assert "add_generation_prompt" in template


def test_tensors_are_complete_and_embeddings_tied(reader: GGUFReader) -> None:
    blocks = reader.fields["llama.block_count"].contents()
    names = {tensor.name for tensor in reader.tensors}
    parts = ("attn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_norm", "ffn_gate", "ffn_up", "ffn_down")
    assert names == {"token_embd.weight", "output_norm.weight"} | {
        f"blk.{block}.{part}.weight" for block in range(blocks) for part in parts
    }
    assert {tensor.tensor_type.name for tensor in reader.tensors} == {"Q8_0", "F32"}
