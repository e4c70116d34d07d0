"""What an engine promises, on other devices: what callers do gives there what it gives on the CPU.

All with float32, where answers are equal. The devices are workers on loopback. Whole suites of tests run on them with
`pytest --on-workers`; what is here runs always.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ollama_engine import Engine, SamplingParams, demo
from tests.models import encoders
from tests.models.variants import VARIANTS, prompt
from tests.models.vision import harness
from tests.support.float_copy import write_float_copy
from tests.support.on_workers import PLACEMENTS
from tests.support.workers import RunningWorker, two_workers

NEAR = 1e-3
"""Largest difference of log-probabilities and embeddings; 1e-5 is found."""
FORM = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer"}},
    "required": ["name", "age"],
}

GOES_ON = dict.fromkeys(range(317, 320), -np.inf)
"""A bias against the tokens that end an answer."""

Numbers = list[float]
Outcome = tuple[Any, Numbers]
"""What must be equal, and what must be near."""


def greedy(n: int = 12, **options: Any) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=n, **options)


def flat(values: Any) -> Numbers:
    return [float(value) for value in np.ravel(values)]


# -- what callers do ---------------------------------------------------------------------------------------------------


def shifts(engine: Engine, folder: Path) -> Outcome:
    """An answer beyond the context: the oldest tokens go, and the keys that stay are turned."""
    with engine.session() as session:
        session.append(prompt(60))
        found = session.generate(greedy(60), on_overflow="shift")
        return (found.tokens, session.tokens), []


def shares(engine: Engine, folder: Path) -> Outcome:
    """A prefix from the cache, several answers to one prompt, and other requests in the batch."""
    first = engine.generate(prompt(50), greedy())
    again = engine.generate([*prompt(50), 5, 6], greedy())
    drawn = engine.generate(prompt(40), SamplingParams(seed=3, temperature=0.7, max_tokens=8), n=3)
    beside = engine.generate([prompt(n, seed=n) for n in (3, 20, 41, 7)], greedy())
    assert again.usage.cached_tokens >= 50
    return [each.tokens for each in (first, again, *drawn, *beside)], []


def forks(engine: Engine, folder: Path) -> Outcome:
    with engine.session() as session:
        session.append(prompt(30))
        with session.fork() as other:
            other.append([9, 8, 7])
            found = [session.generate(greedy()).tokens, other.generate(greedy()).tokens]
        session.rewind(14)
        session.append([4, 4])
        return [*found, session.generate(greedy()).tokens], []


def saves(engine: Engine, folder: Path) -> Outcome:
    """Two sessions whose cells are interleaved; one comes back from a file, into cells that others had."""
    with engine.session() as session, engine.session() as other:
        for n in range(1, 6):
            session.append(prompt(n, seed=n))
            other.append(prompt(7 - n, seed=9 + n))
        session.save(folder / "saved", overwrite=True)
        expected = session.generate(greedy()).tokens
    engine.generate([prompt(30, seed=2), prompt(30, seed=3)], greedy())
    with engine.load_session(folder / "saved") as session:
        found = session.generate(greedy())
    assert (found.tokens, found.usage.cached_tokens) == (expected, 14)
    return found.tokens, []


def scores(engine: Engine, folder: Path) -> Outcome:
    found = engine.generate(prompt(30), greedy(6, logprobs=3, prompt_logprobs=0))
    entries = [*(found.prompt_logprobs or ())[1:], *(found.logprobs or ())]
    numbers = [entry.logprob for entry in entries if entry is not None]
    return found.tokens, [*numbers, *flat(engine.logits(prompt(30)))]


def writes_json(engine: Engine, folder: Path) -> Outcome:
    """Drawn answers in a form, side by side."""
    drawn = [SamplingParams(temperature=0.8, seed=n, max_tokens=60) for n in range(3)]
    requests = [engine.submit("Once", params, format=FORM) for params in drawn]
    answers = [request.result(120) for request in requests]
    assert all(set(answer.parsed) == {"name", "age"} for answer in answers if answer.finish_reason == "stop")
    return [answer.text for answer in answers], []


def preempted(engine: Engine, folder: Path) -> Outcome:
    """Answers that together need more cells than there are: some are computed again."""
    with engine.session() as session:
        session.append(prompt(90))
        answers = engine.generate([prompt(20, seed=n) for n in range(4)], greedy(75, logit_bias=GOES_ON))
    assert sum(answer.usage.preemptions for answer in answers) > 0
    return [answer.tokens for answer in answers], []


def embeds(engine: Engine, folder: Path) -> Outcome:
    texts = ["One day", "a fox went to the forest and saw a bear " * 2, "x"]
    return None, flat(engine.embed(texts))


def sees(engine: Engine, folder: Path) -> Outcome:
    case = _seeing()
    assert engine.memory.layers["vision"] > 0
    answers = [engine.generate(case.segments(given), harness.greedy(case)).tokens for given in case.prompts.values()]
    return answers, flat(engine.logits(case.segments(case.prompts["one"])))


# -- with which models -------------------------------------------------------------------------------------------------


def _variant(name: str) -> Callable[[Path], str]:
    return lambda folder: next(v for v in VARIANTS if str(v) == name).file(folder)


def _seeing() -> harness.Case:
    return next(case for case in harness.cases() if case.name == "gemma3")


def _story(folder: Path) -> str:
    write_float_copy(demo.path(), folder / "story.gguf")
    return str(folder / "story.gguf")


def _encoder(folder: Path) -> str:
    return str(encoders.converted(encoders.case("bert"), folder))


LLAMA = _variant("llama-everything")


@dataclass(frozen=True)
class Act:
    do: Callable[[Engine, Path], Outcome]
    model: Callable[[Path], str] = LLAMA
    options: dict[str, Any] = field(default_factory=dict)
    near: float = NEAR


ACTS = {
    "shift": Act(shifts, options={"num_ctx": 80}),
    "shift with a window": Act(shifts, _variant("llama-window"), {"num_ctx": 80}),
    "share": Act(shares),
    "share without flash attention": Act(shares, options={"flash_attention": "off"}),
    "fork": Act(forks),
    "save and restore": Act(saves),
    "save and restore without flash attention": Act(saves, options={"flash_attention": "off"}),
    "log-probabilities": Act(scores),
    "log-probabilities, cache of q8_0": Act(scores, options={"kv_cache_type": "q8_0"}, near=0.2),
    "log-probabilities, cache of f16": Act(scores, options={"kv_cache_type": "f16"}, near=0.05),
    "preemption": Act(preempted, options={"num_ctx": 100, "parallel": 2}),
    "JSON": Act(writes_json, _story),
    "embeddings of a model that writes": Act(embeds),
    "embeddings of an encoder": Act(embeds, _encoder),
    "experts": Act(shares, _variant("llama-experts")),
    "experts on the CPU": Act(shares, _variant("llama-experts"), {"cpu_experts": 1}),
    "images": Act(sees, lambda folder: str(harness.converted(_seeing(), folder)), {"num_ctx": 512}),
}


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunningWorker, RunningWorker]]:
    with two_workers(tmp_path_factory.mktemp("workers")) as both:
        yield both


@pytest.mark.parametrize(("cache", "flash"), [("f16", "auto"), ("f32", "off")])
def test_rounding_is_all_that_differs(
    cache: Any, flash: Any, workers: tuple[RunningWorker, RunningWorker], tmp_path: Path
) -> None:
    """With 8-bit weights activations are rounded. The results of both devices are as far from those without."""
    text = "One day a fox went to the forest. He saw a bear and a bird, and they talked about the sun and the rain."
    exact = _story(tmp_path)

    def rows(path: str | Path, **options: Any) -> Any:
        with Engine(path, num_ctx=64, threads=1, **options) as engine:
            found = engine.logits(text).astype(np.float64)
        return found - found.max(1, keepdims=True)

    there: dict[str, Any] = {"devices": [workers[0].address]}
    here: dict[str, Any] = {"gpu_layers": 0}
    right = rows(exact, kv_cache_type="f32", **here)
    np.testing.assert_allclose(rows(exact, kv_cache_type="f32", flash_attention=flash, **there), right, atol=NEAR)
    options = {"kv_cache_type": cache, "flash_attention": flash}
    wrong = [np.median(np.abs(rows(demo.path(), **options, **where) - right)) for where in (here, there)]
    assert 0 < wrong[1] < 3 * wrong[0]


def test_a_tower_on_the_cpu(
    workers: tuple[RunningWorker, RunningWorker], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a device has no room for it: the same answers as with the tower there, and as on the CPU."""
    act, found, held = ACTS["images"], [], []
    options = {"num_ctx": 512, "threads": 1, "kv_cache_type": "f32", "devices": [workers[0].address]}
    path = act.model(tmp_path)
    for there in (True, False):
        if not there:
            monkeypatch.setattr(
                "ollama_engine.ml.device.placement_planner._Filling.place_vision", lambda self, order, main: self.cpu
            )
        with Engine(path, **options) as engine:
            found.append(act.do(engine, tmp_path))
            held.append(engine.memory.devices[0].weights)
    assert held[0] > held[1], "the tower's weights lie on the worker first"
    assert found[0][0] == found[1][0]
    np.testing.assert_allclose(found[0][1], found[1][1], rtol=0, atol=NEAR)


@pytest.mark.parametrize("name", ACTS)
def test_as_on_the_cpu(name: str, workers: tuple[RunningWorker, RunningWorker], tmp_path: Path) -> None:
    act = ACTS[name]
    path = act.model(tmp_path)
    options: dict[str, Any] = {"num_ctx": 256, "parallel": 4, "threads": 1, "kv_cache_type": "f32", **act.options}
    here = {key: value for key, value in options.items() if key != "cpu_experts"}
    with Engine(path, gpu_layers=0, **here) as engine:
        same, near = act.do(engine, tmp_path)
    for placement, where in PLACEMENTS.items():
        named = [worker.address for worker in workers[: 2 if placement == "two" else 1]]
        with Engine(path, devices=named, **where, **options) as engine:
            assert {device.device for device in engine.memory.devices} >= set(named), placement
            found = act.do(engine, tmp_path)
        assert found[0] == same, placement
        np.testing.assert_allclose(found[1], near, rtol=0, atol=act.near, err_msg=placement)
