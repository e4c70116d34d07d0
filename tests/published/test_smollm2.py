"""SmolLM2 answers as llama.cpp does: 200 prompts greedily, token by token (`make_smollm2_goldens.py`).

With f32 weights both do the same arithmetic up to the order of sums, and all 200 answers are equal. As published, ggml
rounds activations to 8 bits before it multiplies: a different last bit of one activation can move a logit by 0.1, and
answers part where two tokens are about as likely. llama.cpp itself, with its default context (f16 cache, flash
attention) instead of an f32 cache, gives 93 of the 200 again, and the others part where the first token was ahead by up
to 0.67 nats; this engine gives 114, and the others part at up to 0.28.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import gguf
import numpy as np
import pytest

from ollama_engine import Engine, SamplingParams
from tests.published.make_smollm2_goldens import GOLDENS, MOST, N_CTX
from tests.published.smollm2_prompts import PROMPTS
from tests.suite import scaled

EQUAL = 0.45
"""Of all answers as published, at least so many are equal to the end."""
CLOSE, FARTHEST = 0.3, 0.8
"""Nats by which llama.cpp's token was ahead where answers part: for nine of ten, and for all."""

pytestmark = pytest.mark.timeout(900)


class Expected(NamedTuple):
    """What llama.cpp answers."""

    tokens: list[int]
    gaps: list[float]


def expected(kind: str) -> list[Expected]:
    with np.load(GOLDENS) as found:
        tokens, gaps = found[kind].view(np.uint16).astype(int), found[f"{kind}_gaps"].astype(float)
    lengths = [int((row != 0xFFFF).sum()) for row in tokens]
    return [Expected(row[:n].tolist(), gap[:n].tolist()) for row, gap, n in zip(tokens, gaps, lengths, strict=True)]


def chosen() -> list[int]:
    """Prompts to ask: all, or some of every kind in the quick suite."""
    return list(range(0, len(PROMPTS), len(PROMPTS) // scaled(200, quick=20)))


def answers(path: Path, numbers: list[int]) -> list[list[int]]:
    params = SamplingParams(temperature=0, max_tokens=MOST)
    options = {"kv_cache_type": "f32", "flash_attention": "off", "num_ctx": N_CTX, "parallel": 8}
    with Engine(path, **options) as engine:
        prompts = [engine.tokenize(PROMPTS[number], add_special=False) for number in numbers]
        return [list(result.tokens) for result in engine.generate(prompts, params)]


def parts_at(ours: list[int], theirs: Expected) -> int | None:
    """Where two answers part; None where they are equal."""
    ends = [*theirs.tokens, None], [*ours, None]
    return next((at for at, (a, b) in enumerate(zip(*ends, strict=False)) if a != b), None)


@pytest.fixture(scope="module")
def f32_path(smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same model with all weights as f32, by the gguf package's own arithmetic."""
    path = tmp_path_factory.mktemp("smollm2") / "f32.gguf"
    write_f32(smollm2_path, path)
    return path


def write_f32(source: Path, target: Path) -> None:
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(target, str(reader.fields["general.architecture"].contents()))
    for field in reader.fields.values():
        if not field.name.startswith("GGUF.") and field.name not in ("general.architecture", "general.file_type"):
            kind = field.types[0]
            sub = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(field.name, field.contents(), kind, sub)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_f32_answers_are_those_of_llama_cpp(f32_path: Path) -> None:
    numbers, golden = chosen(), expected("f32")
    parted = {
        number: (at, golden[number].gaps[at : at + 1])
        for number, ours in zip(numbers, answers(f32_path, numbers), strict=True)
        if (at := parts_at(ours, golden[number])) is not None
    }
    assert parted == {}


def test_published_answers_part_only_where_two_tokens_are_as_likely(smollm2_path: Path) -> None:
    numbers, golden = chosen(), expected("q4_1")
    parted = {
        number: at
        for number, ours in zip(numbers, answers(smollm2_path, numbers), strict=True)
        if (at := parts_at(ours, golden[number])) is not None
    }
    gaps = {number: golden[number].gaps[at] for number, at in parted.items() if at < len(golden[number].gaps)}
    print(f"{len(numbers) - len(parted)} of {len(numbers)} equal; the others part at {gaps}")
    assert len(numbers) - len(parted) >= EQUAL * len(numbers) - 2  # of 20 prompts, some are not like all
    assert sum(gap > CLOSE for gap in gaps.values()) <= 0.1 * len(parted)
    assert max(gaps.values(), default=0) <= FARTHEST
