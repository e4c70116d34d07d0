"""Same seed, same tokens: a request's answer depends on nothing but the request, to the last bit of its logits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

import pytest

from ollama_engine import Engine, demo
from ollama_engine.config import CacheType
from tests.plugins.not_run_here import NOT_HERE
from tests.support import suite
from tests.support.same_bits import ASKED, OURS, Bits, bits, differing, same
from tests.support.suite import slow_except

TEXT = "Once there was a little fox who lived in a big wood. One day she found a red ball. "
LENGTHS = {"few tokens": TEXT[:40], "more than a tile": TEXT * 4, "several pieces": TEXT * 13}
CACHES: dict[str, dict[str, Any]] = {
    "off": {"flash_attention": "off"},
    "off f32": {"flash_attention": "off", "kv_cache_type": "f32"},
    "auto": {},
    **{dtype: {"kv_cache_type": dtype} for dtype in get_args(CacheType) if dtype != "f16"},
}

pytestmark = pytest.mark.skipif(
    not (OURS or suite.on_workers), reason=f"{NOT_HERE}kernels of ours for attention and Q8_0"
)


@pytest.mark.parametrize("length", slow_except(LENGTHS, "more than a tile"))
@pytest.mark.parametrize("kind", slow_except(CACHES, "off", "auto", "q5_1"))
def test_whatever_else_is_asked(kind: str, length: str) -> None:
    if suite.on_workers and CACHES[kind].get("kv_cache_type", "f32") != "f32":
        pytest.skip("keys of few bits round otherwise where their last bits differ")
    with Engine(demo.path(), num_ctx=512, parallel=4, threads=1, **CACHES[kind]) as engine:
        assert differing(engine, engine.tokenize(LENGTHS[length])) == []


@pytest.mark.slow
def test_in_any_engine() -> None:
    """Options that change how prompts are cut, and by whom they are computed, change no bit."""
    engines: list[dict[str, Any]] = [
        {}, {"threads": 2}, {"batch_size": 17}, {"batch_size": 600}, {"flash_attention": "off"}, {"num_ctx": 300},
        {"parallel": 1},
    ]  # fmt: skip
    found: list[Bits] = []
    for options in engines:
        with Engine(demo.path(), **{"num_ctx": 512, "parallel": 4, "threads": 1, **options}) as engine:
            found.append(bits(engine.generate(TEXT * 9, ASKED)))
    assert [options for options, other in zip(engines, found, strict=True) if not same(other, found[0])] == []


@pytest.mark.parametrize("flash", slow_except(["auto", "off"], "off"))
def test_computed_again_after_losing_its_cells(flash: Any) -> None:
    """The tokens of an answer that is preempted are a prompt later, of many rows instead of one at a time."""
    long = replace(ASKED, max_tokens=80, temperature=1.5)
    with Engine(demo.path(), num_ctx=128, parallel=2, threads=1, flash_attention=flash) as engine:
        prompts = [word * 40 for word in ("Once ", "Then ", "There ")]
        expected = [bits(engine.generate(prompt, long, cache=False)) for prompt in prompts]
        with engine.session() as session:
            session.append("There was " * 30)
            requests = [engine.submit(prompt, long) for prompt in prompts]
            answers = [request.result(60) for request in requests]
        assert sum(answer.usage.preemptions for answer in answers) > 0
        assert all(same(bits(answer), before) for answer, before in zip(answers, expected, strict=True))
