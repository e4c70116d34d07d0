"""One request under many schedules, on an engine: what `tests/engine` and `tests/published` ask of its bits."""

from __future__ import annotations

from collections.abc import Iterator

from ollama_engine import Engine, SamplingParams
from ollama_engine.ml.ops.paged import paged_attention_chosen
from ollama_engine.ml.weights.kernel_choice import BY_TABLE
from ollama_engine.runner.request.results import Completion, TokenLogprobs
from tests.support.near import same_logprobs

OURS = bool(BY_TABLE.rows("q8_0", 256)) and paged_attention_chosen("f16")
"""Whether attention, and products with Q8_0 weights, have a kernel of our own on this CPU."""

ASKED = SamplingParams(temperature=1, seed=42, max_tokens=20, logprobs=2)
OTHERS = SamplingParams(temperature=1, seed=7, max_tokens=30)
PROMPTS = ("Once upon a time", "What is the capital of France? " * 8, "One, two, three,")

Bits = tuple[tuple[int, ...], tuple[TokenLogprobs, ...]]


def bits(answer: Completion) -> Bits:
    """The tokens, and all of the log-probabilities."""
    assert answer.logprobs is not None
    return answer.tokens, answer.logprobs


def same(found: Bits, expected: Bits) -> bool:
    """Whether two answers are the same: to the last bit on the CPU."""
    return found[0] == expected[0] and same_logprobs(found[1], expected[1])


def schedules(engine: Engine, ids: list[int]) -> Iterator[tuple[str, Bits]]:
    """The request's answer after this and that, with a name for each; the first is that of a new engine."""

    def ask(*, cache: bool = True) -> Bits:
        return bits(engine.generate(ids, ASKED, cache=cache))

    yield "alone", ask(cache=False)
    engine.generate(PROMPTS, OTHERS)
    yield "after others", ask(cache=False)
    streams = [engine.stream(prompt, OTHERS) for prompt in PROMPTS]
    for stream in streams:
        next(stream)
    yield "beside others that decode", ask(cache=False)
    for stream in streams:
        stream.close()
    several = engine.generate([PROMPTS[1], PROMPTS[1], ids], ASKED, cache=False)
    yield "in one step with other prompts", bits(several[-1])
    for n in (1, len(ids) // 2, len(ids) - 1):
        engine.generate([*ids[:n], *range(5, 10)], OTHERS)
        yield f"with {n} of {len(ids)} tokens cached", ask()
    yield "with its whole prompt cached", ask()


def differing(engine: Engine, ids: list[int]) -> list[str]:
    """The schedules under which the request's answer is another."""
    (_, expected), *others = schedules(engine, ids)
    return [name for name, found in others if not same(found, expected)]
