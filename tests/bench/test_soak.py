"""The soak: a short one finds nothing, and what it looks for is found where it is there."""

from __future__ import annotations

import dataclasses
import sys

import pytest

from bench.soak.clients import Clients, Tally
from bench.soak.questions import Question, questions, scripts
from bench.soak.resources import Sample, faults_of
from ollama_engine import Engine, SamplingParams, demo

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="it reads /proc")
QUIET = Sample(0, 100, 10, 9, 0)


@pytest.mark.slow
def test_a_short_soak_finds_nothing() -> None:
    from bench.soak.__main__ import soak  # noqa: PLC0415

    tally, samples, faults = soak(5, 3, 3, 1, lambda found: None, interval=0.5, cpus=1)
    assert not faults
    assert sum(tally.compared.values()) > 0
    assert samples


def test_an_answer_that_differs_is_a_fault() -> None:
    with Engine(demo.path(), num_ctx=64, threads=1) as engine:
        tally = Tally()
        question = Question(engine, "One", SamplingParams(temperature=0, max_tokens=2))
        clients = Clients([question], [], [], tally)
        clients.same("text", question.alone, question.alone)
        assert not tally.faults
        other = dataclasses.replace(question, params=SamplingParams(temperature=0, max_tokens=3))
        clients.same("text", other.alone, question.alone)
        assert len(tally.faults) == 1


def test_what_grew_is_a_fault() -> None:
    flat = [QUIET] * 40
    assert not faults_of(flat, QUIET, QUIET)
    growing = [QUIET._replace(rss_mib=100 + 2 * i) for i in range(40)]
    assert faults_of(growing, QUIET, QUIET) == ["memory: 129.0 MiB in the second quarter, 169.0 in the last"]
    assert faults_of(flat, QUIET, QUIET._replace(descriptors=11)) == ["descriptors: 10 before, 11 after"]
    assert faults_of(flat, QUIET, QUIET._replace(threads=10)) == ["threads: 9 before, 10 after"]


def test_every_kind_of_question_is_there() -> None:
    with Engine(demo.path(), num_ctx=64, threads=1) as text:
        assert {question.kind for question in questions(text, text)} == {"text", "format", "image"}
        assert {len(script.texts) for script in scripts(text)} == {2, 3}
