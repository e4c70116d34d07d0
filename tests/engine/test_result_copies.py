"""Results are data: they are copied, pickled for other processes, and become dicts."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal

import pytest
from pydantic import BaseModel

from ollama_engine import ChatChunk, ChatResult, Choice, Chunk, Completion, Engine, ReasoningBudget, Regex
from ollama_engine.errors import IncompleteError

COPIES: list[Callable[[Any], Any]] = [copy.copy, copy.deepcopy, lambda given: pickle.loads(pickle.dumps(given))]
SHORT = {"temperature": 0, "max_tokens": 4}


@dataclass
class Verdict:
    good: bool
    stars: Literal[1, 2]


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine("demo", num_ctx=128, threads=1) as engine:
        yield engine


@pytest.mark.parametrize("kind", [Verdict, list[Literal["a"]], {"type": "boolean"}, Choice(["yes"]), Regex("[a-c]{2}")])
def test_an_answer_in_a_format(engine: Engine, kind: Any) -> None:
    answer = engine.generate("One day", temperature=0, max_tokens=40, format=kind)
    chat = engine.chat([{"role": "user", "content": "Hi"}], temperature=0, max_tokens=40, format=kind)
    last = list(engine.stream("One day", temperature=0, max_tokens=40, format=kind))[-1]
    for copied in COPIES:
        assert copied(answer) == answer
        assert copied(answer).parsed == answer.parsed
        assert copied(chat).parsed == chat.parsed
        assert copied(last) == last
    assert asdict(answer)["text"] == answer.text


def test_an_answer_behind_reasoning(engine: Engine) -> None:
    budget = ReasoningBudget(2, opens=None, closes=".")
    answer = engine.generate("One day", temperature=0, max_tokens=60, format=Verdict, reasoning_budget=budget)
    assert [copied(answer).parsed for copied in COPIES] == [answer.parsed] * len(COPIES)
    assert not answer.text.startswith("{")


def test_an_answer_that_was_cut_off(engine: Engine) -> None:
    answer = engine.generate("One day", temperature=0, max_tokens=2, format=Verdict)
    for copied in COPIES:
        with pytest.raises(IncompleteError, match="max_tokens"):
            print(copied(answer).parsed)


@pytest.mark.parametrize(
    "asked",
    [
        lambda engine: engine.generate("One day", logprobs=2, **SHORT),
        lambda engine: engine.score("One day", " a"),
        lambda engine: engine.metrics,
        lambda engine: engine.memory,
        lambda engine: engine.slots(),
    ],
    ids=["completion", "score", "metrics", "memory", "slots"],
)
def test_other_results(engine: Engine, asked: Callable[[Engine], Any]) -> None:
    result = asked(engine)
    assert [copied(result) for copied in COPIES] == [result] * len(COPIES)


def test_metrics_and_facts_become_dicts(engine: Engine) -> None:
    engine.generate("One day", max_tokens=1)
    assert asdict(engine.metrics)["requests_by_kind"]["generation"]["length"] >= 1
    facts = pickle.loads(pickle.dumps(engine.info))
    assert facts == engine.info
    assert facts.architecture == engine.info.architecture
    assert list(facts.metadata) == list(engine.info.metadata)
    assert asdict(engine.info)["metadata"]["general.architecture"] == "llama"


class Answers(BaseModel):
    answer: Completion
    chat: ChatResult
    pieces: list[Chunk]
    chat_pieces: list[ChatChunk]


@pytest.mark.parametrize("kind", [None, {"type": "boolean"}])
def test_results_are_fields_of_a_pydantic_model(engine: Engine, kind: Any) -> None:
    """And so they are what functions of FastAPI return. What reads an answer's value is not written."""
    options: dict[str, Any] = {"temperature": 0, "max_tokens": 8, "logprobs": 2, "format": kind}
    messages = [{"role": "user", "content": "Hi"}]
    answers = Answers(
        answer=engine.generate("One day", **options),
        chat=engine.chat(messages, **options),
        pieces=list(engine.stream("One day", **options)),
        chat_pieces=list(engine.chat_stream(messages, **options)),
    )
    written = answers.model_dump_json()
    assert Answers.model_validate_json(written) == answers
    assert "reader" not in written
