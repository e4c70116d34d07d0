"""Answers of the packaged models: the same tokens on every CPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ollama_engine import demo
from ollama_engine.engine import Engine
from ollama_engine.sample import SamplingParams
from ollama_engine.selftest.check import Check, equal

__all__ = ["answer_checks"]

PROMPT = "Once upon a time there was a fox who"
GREEDY = SamplingParams(temperature=0, max_tokens=16)
IDS: Final = (
    2555, 51, 414, 6, 82, 277, 64, 127, 107, 339, 220, 163, 234, 104, 220, 172, 253, 99, 232, 220, 499, 13,
)  # fmt: skip
TOLD: Final = (386, 313, 258, 434, 1114, 726, 317, 1270, 13, 364, 279, 258, 495, 816, 1271, 11)
"""Lived in a little hut made of sticks. He was a very patient fox, ..."""
DRAWN: Final = (386, 313, 258, 1438, 1437, 317, 1157, 313)
SEEN: Final = " a red circle at the top left and a yellow square in the middle"


def answer_checks() -> Iterator[Check]:
    """Checks of whole answers."""
    yield Check("tokenizer", _tokenizer)
    yield Check("answers", _answers)
    yield Check("answers in a form", _in_a_form, needs="llguidance")
    yield Check("answers, 8-bit cache", _quantized_cache)
    yield Check("picture", _picture)


def _tokenizer() -> str:
    text = "Tom's naïve 猫 \U0001f98a  sat."
    with Engine(demo.path(), num_ctx=64, threads=1) as engine:
        ids = engine.tokenize(text)
        equal("ids", tuple(ids), IDS)
        equal("text", engine.detokenize(ids), text)
    return f"{len(IDS)} ids, and back"


def _answers() -> str:
    """Greedy, again from the cache, sampled, and several at once."""
    with Engine(demo.path(), num_ctx=256, threads=2) as engine:
        equal("greedy", tuple(engine.generate(PROMPT, GREEDY).tokens), TOLD)
        equal("again", tuple(engine.generate(PROMPT, GREEDY).tokens), TOLD)
        several = engine.generate([PROMPT, "The cat", PROMPT], GREEDY)
        equal("several at once", [tuple(several[at].tokens) for at in (0, 2)], [TOLD, TOLD])
        sampled = SamplingParams(temperature=0.8, seed=7, max_tokens=8)
        equal("sampled", tuple(engine.generate(PROMPT, sampled).tokens), DRAWN)
    return f"greedy, cached, several, sampled: {len(TOLD)} known tokens"


def _in_a_form() -> str:
    with Engine(demo.path(), num_ctx=256, threads=2) as engine:
        forced = engine.generate(PROMPT, GREEDY, format={"type": "boolean"}).text
    equal("one of true and false", forced in ("true", "false"), True)
    return forced


def _quantized_cache() -> str:
    with Engine(demo.path(), num_ctx=256, threads=1, kv_cache_type="q8_0") as engine:
        equal("greedy", tuple(engine.generate(PROMPT, GREEDY).tokens)[:6], TOLD[:6])
    return "6 known tokens"


def _picture() -> str:
    with Engine(demo.vision_path(), num_ctx=512, threads=2) as engine:
        given = [demo.picture_path()]
        text = engine.generate("[img]What do you see?", GREEDY, images=given).text
    equal("answer", text, SEEN)
    return f"seen:{text}"
