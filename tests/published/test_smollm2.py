"""SmolLM2 answers as llama.cpp does: 200 prompts greedily, token by token (`make_smollm2_goldens.py`).

With f32 weights both do the same arithmetic up to the order of sums, and all 200 answers are equal. As published, ggml
rounds activations to 8 bits before it multiplies: a different last bit of one activation can move a logit by 0.1, and
answers part where two tokens are about as likely. llama.cpp itself, with its default context (f16 cache, flash
attention) instead of an f32 cache, gives 93 of the 200 again, and the others part where the first token was ahead by up
to 0.67 nats; this engine gives 114, and the others part at up to 0.28.
"""

from __future__ import annotations

from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from ollama_engine import Engine, SamplingParams
from ollama_engine.config import EngineConfig
from ollama_engine.evaluate.perplexity import Perplexity, chunk_logprobs, chunks, scored_from
from ollama_engine.runner.load.loading import load
from tests.published.make_smollm2_goldens import (
    GOLDENS,
    LONG_CTX,
    LONG_KEEP,
    LONG_PROMPT,
    LONG_TOKENS,
    MOST,
    N_CTX,
)
from tests.published.smollm2_prompts import PROMPTS
from tests.support.float_copy import write_float_copy
from tests.support.suite import scaled

EQUAL = 0.45
"""Of all answers as published, at least so many are equal to the end."""
CLOSE, FARTHEST = 0.3, 0.8
"""Nats by which llama.cpp's token was ahead where answers part: for nine of ten, and for all."""

pytestmark = pytest.mark.timeout(600)  # answers to 200 prompts


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
    return list(range(0, len(PROMPTS), len(PROMPTS) // scaled(200, quick=10)))


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
    write_float_copy(smollm2_path, path)
    return path


@pytest.mark.slow
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


EXACT = {"kv_cache_type": "f32", "flash_attention": "off"}


@pytest.mark.slow
def test_an_answer_goes_on_through_shifts_as_that_of_llama_cpp(f32_path: Path) -> None:
    """Keys are turned to their new positions as llama.cpp turns them: not one of 700 tokens differs."""
    with np.load(GOLDENS) as found:
        golden = found["shifted"].view(np.uint16).tolist()
    with Engine(f32_path, num_ctx=LONG_CTX, parallel=1, **EXACT) as engine:
        ids = engine.tokenize(LONG_PROMPT, add_special=False)
        params = SamplingParams(temperature=0, max_tokens=LONG_TOKENS)
        answer = engine.generate(ids, params, on_overflow="shift", num_keep=LONG_KEEP)
    assert answer.usage.shifted_tokens >= 3 * (LONG_CTX - LONG_KEEP) // 2, "several shifts"
    assert list(answer.tokens) == golden


@pytest.mark.slow
def test_a_conversation_of_20_turns(f32_path: Path) -> None:
    """Each answer is the one that its prompt gets alone and uncached, before and after the context is full."""
    params = SamplingParams(temperature=0, max_tokens=24)
    messages: list[object] = []
    dropped, cached = 0, 0
    with Engine(f32_path, num_ctx=384, parallel=1, **EXACT) as engine:
        for turn in range(20):
            messages.append({"role": "user", "content": f"{turn + 1}. {PROMPTS[60 + turn]}"})
            answer = engine.chat(messages, params, on_overflow="shift", num_keep=24)
            prompt = engine.apply_template(messages)
            alone = engine.generate(prompt, params, on_overflow="shift", num_keep=24, cache=False)
            assert answer.tokens == alone.tokens, turn
            dropped += answer.usage.dropped_prompt_tokens
            cached += answer.usage.cached_tokens
            messages.append(answer.message)
    assert dropped > 0, "the context became full"
    assert cached > 0, "what was said before was not computed again"


# llama-perplexity -c 512 -b 512 -fa off -ctk f32 -ctv f32 -f (the prompts, a line break
# between them) --no-escape. This vocabulary puts no BOS before a text.
PERPLEXITY = {"f32": 1.6973, "q4_1": 1.6982}


@pytest.mark.slow
@pytest.mark.parametrize("kind", PERPLEXITY)
def test_perplexity_is_that_of_llama_perplexity(kind: str, f32_path: Path, smollm2_path: Path) -> None:
    path = f32_path if kind == "f32" else smollm2_path
    config = EngineConfig(num_ctx=512, parallel=1, kv_cache_type="f32", flash_attention="off")
    found = Perplexity()
    with closing(load(path, config, logit_rows=512 - scored_from(512))) as loaded:
        ids = loaded.tokenizer.encode("\n".join(PROMPTS), parse_special=False)
        for chunk in islice(chunks(ids, 512, None), 18):
            found = found.plus(chunk_logprobs(loaded.executor, loaded.cache, chunk))
    golden = PERPLEXITY[kind]
    assert found.value == pytest.approx(golden, rel=1e-4 if kind == "f32" else 2e-3)
