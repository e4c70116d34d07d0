"""The head that predicts further tokens: its logits are those of a model whose one block is the head's.

That model's embeddings are what the head joins of tokens and hidden states, computed here in float64. So what is new in
a head is checked against numpy, and its block by the code that is compared with transformers.
"""

from __future__ import annotations

import os
from pathlib import Path
from unittest.mock import patch

import gguf
import numpy as np
import pytest
from numpy.typing import NDArray

from ollama_engine import Engine
from ollama_engine.input import Batch, BatchMedia, FloatArray, MediaItem
from ollama_engine.models import next_tokens
from tests.models import families
from tests.models.heads import converted, with_head
from tests.support.gguf_files import write_and_close
from tests.support.suite import slow_except

CASES = slow_except(
    ("glm4moe", "deepseek-v3-plain", "deepseek-v3-bf16", "glm-4.7-flash", "qwen35", "qwen35-bf16", "qwen35moe",
     "qwen3next"), "glm4moe", "deepseek-v3-plain", "qwen35",
)  # fmt: skip
ONE_BLOCK = {"block_count": 1, "leading_dense_block_count": 0, "full_attention_interval": 1}


def read(path: Path) -> dict[str, NDArray[np.float64]]:
    return {tensor.name: np.array(tensor.data, np.float64) for tensor in gguf.GGUFReader(path).tensors}


def joined(path: Path, block: str, ids: list[int], hidden: FloatArray) -> FloatArray:
    """What the head's block is given: of each token and the hidden state before it."""
    tensors = read(path)
    (eps,) = (
        field.contents() for name, field in gguf.GGUFReader(path).fields.items() if name.endswith("norm_rms_epsilon")
    )

    def unit(rows: NDArray[np.float64], kind: str) -> NDArray[np.float64]:
        rms = np.sqrt((rows**2).mean(axis=1, keepdims=True) + eps)
        return rows / rms * tensors[f"{block}nextn.{kind}.weight"]

    rows = [unit(tensors["token_embd.weight"][ids], "enorm"), unit(hidden.astype(np.float64), "hnorm")]
    return (np.concatenate(rows, axis=1) @ tensors[f"{block}nextn.eh_proj.weight"].T).astype(np.float32)


def write_one_block(source: Path, path: Path, block: str, embeddings: FloatArray) -> Path:
    """The model whose one block is the head's."""
    reader = gguf.GGUFReader(source)
    architecture = reader.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(os.fspath(path), architecture)
    for name, entry in reader.fields.items():
        key = name.removeprefix(f"{architecture}.")
        if name.startswith("GGUF.") or name == "general.architecture" or key in (
            "nextn_predict_layers", "attention.recurrent_layers"
        ):  # fmt: skip
            continue
        writer.add_key_value(name, ONE_BLOCK.get(key, entry.contents()), entry.types[0], entry.types[-1])
    tensors = {tensor.name: np.array(tensor.data) for tensor in reader.tensors}
    made = {"output.weight": tensors.get("output.weight", tensors["token_embd.weight"]).copy()}
    made["token_embd.weight"] = tensors["token_embd.weight"].copy()
    made["token_embd.weight"][: len(embeddings)] = embeddings
    made["output_norm.weight"] = tensors[f"{block}nextn.shared_head_norm.weight"]
    for name, values in tensors.items():
        if name.startswith(block) and ".nextn." not in name:
            made[name.replace(block, "blk.0.")] = values
    for name, values in made.items():
        writer.add_tensor(name, values)
    write_and_close(writer)
    return path


@pytest.mark.parametrize("name", CASES)
def test_logits_are_those_of_its_block_behind_what_it_joins(name: str, tmp_path: Path) -> None:
    case = families.case(name)
    path = converted(case, tmp_path, with_head(case))
    ids = case.prompt[:25]
    with patch.object(next_tokens, "MANY", 1), case.engine(path, parallel=32, draft="mtp") as engine:
        hidden = states_of(engine, ids)
        found, states = head_rows(engine, ids[1:], hidden[:-1])
        first, same = head_rows(engine, ids[1:], hidden[:-1], number=1)
    assert first.shape[1] == found.shape[1] // next_tokens.PART
    assert np.abs(first - found[:, : first.shape[1]]).max() < 1e-5 * np.abs(found).max()
    assert np.array_equal(same, states)
    (block,) = {name[: name.index("nextn.")] for name in read(path) if ".nextn." in name}
    embeddings = joined(path, block, ids[1:], hidden[:-1])
    with case.engine(write_one_block(path, tmp_path / "one.gguf", block, embeddings), parallel=32) as engine:
        rows = list(range(len(embeddings)))
        expected = engine.logits(rows)
        expected_states = states_of(engine, rows)
    assert np.abs(found - expected).max() < 2e-5 * np.abs(expected).max()
    assert np.abs(states - expected_states).max() < 2e-5 * np.abs(expected_states).max()


def states_of(engine: Engine, ids: list[int]) -> FloatArray:
    """The hidden states of all tokens, behind the final norm."""
    (found,) = engine.embeddings([ids], pooling="none", normalize=False)
    return np.array(found.vector, np.float32)


def head_rows(
    engine: Engine, tokens: list[int], hidden: FloatArray, *, number: int = 0
) -> tuple[FloatArray, FloatArray]:
    """Logits and hidden states of the head, for each of these tokens and the hidden states before them.

    `number`: of its executor.
    """
    head = engine._loaded.head
    assert head is not None
    executor = head.executors[number]
    head.cache.remove(0, 0)
    batch = Batch.of(tokens, 0, outputs=range(len(tokens)))
    batch.media = (BatchMedia(0, len(hidden), MediaItem(0, len(hidden), lambda: hidden)),)
    executor.prepare(batch)
    executor.launch(batch.tokens, executor.media_rows(batch, pytest.fail))
    with executor.results() as logits:
        return logits.copy(), executor.hidden()
