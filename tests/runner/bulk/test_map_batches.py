"""Engine.map_batches: answers in order, prompts taken as they are needed, and jobs that are killed go on."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ollama_engine import Engine, SamplingParams, demo
from ollama_engine.errors import ConfigError, ContextOverflowError, EngineBusyError
from tests.support.waiting import WAIT_SECONDS

SHORT = SamplingParams(max_tokens=3, temperature=0)


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine(demo.path(), num_ctx=64, parallel=4, threads=1) as found:
        yield found


def prompts(n: int) -> list[str]:
    return [f"Day {i}:" for i in range(n)]


def test_answers_are_those_of_generate_in_order(engine: Engine) -> None:
    found = list(engine.map_batches(prompts(40), SHORT))
    assert [answer.key for answer in found] == list(range(40))
    expected = engine.generate(prompts(40), SHORT)
    assert [answer.text for answer in found] == [completion.text for completion in expected]
    assert [answer.completion_tokens for answer in found] == [c.usage.completion_tokens for c in expected]


def test_conversations_are_chats(engine: Engine) -> None:
    chat = [{"role": "user", "content": "Hello"}]
    (found, text) = engine.map_batches([chat, "One day"], SHORT)
    assert found.text == engine.chat(chat, SHORT).content
    assert text.text == engine.generate("One day", SHORT).text


def test_prompts_are_taken_as_they_are_needed(engine: Engine) -> None:
    taken = itertools.count()
    answers = engine.map_batches((f"Day {next(taken)}:" for _ in itertools.repeat(None)), SHORT)
    for _ in range(5):
        next(answers)
    assert next(taken) < 5 + 4 * 4 + 2
    answers.close()  # type: ignore[attr-defined]
    assert engine.generate("One day", SHORT).text  # the engine is free


def test_a_prompt_that_is_too_long_says_which_it_is(engine: Engine) -> None:
    with pytest.raises(ContextOverflowError, match="prompt 1: "):
        list(engine.map_batches(["One", "day " * 100], SHORT))
    found = list(engine.map_batches(["One", "day " * 100, [], "Two"], SHORT, on_error="keep"))
    assert [answer.error is None for answer in found] == [True, False, False, True]
    assert [answer.finish_reason for answer in found][1:3] == ["error", "error"]
    with pytest.raises(ConfigError, match="on_error"):
        engine.map_batches([], SHORT, on_error="hide")  # type: ignore[arg-type]


def test_a_full_queue_is_waited_for() -> None:
    with Engine(demo.path(), num_ctx=64, parallel=1, max_queue=1, threads=1) as engine:
        assert len(list(engine.map_batches(prompts(12), SHORT))) == 12


def test_a_job_goes_on_where_it_was_left(engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "answers.jsonl"
    answers = engine.map_batches(prompts(30), SHORT, checkpoint=file)
    first = [next(answers) for _ in range(11)]
    answers.close()  # type: ignore[attr-defined]
    with open(file, "ab") as damaged:
        damaged.write(b'{"key":11,"text":"half a li')
    submit, submitted = engine.submit, []

    def counted(prompt: str, *arguments: Any, **options: Any) -> Any:
        submitted.append(prompt)
        return submit(prompt, *arguments, **options)

    monkeypatch.setattr(engine, "submit", counted)
    found = list(engine.map_batches(prompts(30), SHORT, checkpoint=file))
    assert submitted == prompts(30)[11:]
    assert found[:11] == first
    assert found == list(engine.map_batches(prompts(30), SHORT))
    assert len(file.read_bytes().splitlines()) == 31


def test_a_checkpoint_of_something_else_is_refused(engine: Engine, tmp_path: Path) -> None:
    file = tmp_path / "answers.jsonl"
    list(engine.map_batches(prompts(3), SHORT, checkpoint=file))
    for others in (["another", *prompts(3)], prompts(2)):
        with pytest.raises(ConfigError, match="other prompts"):
            list(engine.map_batches(others, SHORT, checkpoint=file))
    with pytest.raises(ConfigError, match="another job"):
        engine.map_batches(prompts(3), SamplingParams(max_tokens=4), checkpoint=file)
    (tmp_path / "notes.txt").write_text("dear diary\n")
    with pytest.raises(ConfigError, match="another kind"):
        engine.map_batches(prompts(3), SHORT, checkpoint=tmp_path / "notes.txt")
    assert (tmp_path / "notes.txt").read_text() == "dear diary\n"
    answers = engine.map_batches(prompts(3), SHORT, checkpoint=file)
    next(answers)
    with pytest.raises(EngineBusyError, match="another process"):
        engine.map_batches(prompts(3), SHORT, checkpoint=file)
    answers.close()  # type: ignore[attr-defined]


JOB = """
import sys
from ollama_engine import Engine, SamplingParams, demo
with Engine(demo.path(), num_ctx=64, parallel=4, threads=1) as engine:
    for answer in engine.map_batches((f"Day {{i}}:" for i in range({n})), SamplingParams(max_tokens=3, temperature=0),
                                     checkpoint=sys.argv[1]):
        print(answer.key, flush=True)
"""


@pytest.mark.slow
def test_a_job_that_is_killed_answers_every_prompt_once(engine: Engine, tmp_path: Path) -> None:
    file, n = tmp_path / "answers.jsonl", 3000
    for kill_after in (100, 700, 1500):
        job = subprocess.Popen([sys.executable, "-c", JOB.format(n=n), str(file)], stdout=subprocess.PIPE, text=True)
        assert job.stdout is not None
        for line in job.stdout:
            if int(line) >= kill_after:
                break
        os.kill(job.pid, signal.SIGKILL)
        job.wait(WAIT_SECONDS)
        job.stdout.close()
    found = list(engine.map_batches(prompts(n), SHORT, checkpoint=file))
    assert [answer.key for answer in found] == list(range(n))
    assert len(file.read_bytes().splitlines()) == n + 1


@pytest.mark.parametrize(
    ("given", "came"),
    [
        ("One day", "str"),
        (b"One", "bytes"),
        (5, "int"),
        (None, "NoneType"),
        ({"prompt": "One"}, "dict"),
        ([{"role": "user", "content": "Hello"}], "the messages of one chat"),
    ],
)
def test_one_prompt_is_not_several(engine: Engine, given: Any, came: str) -> None:
    with pytest.raises(ConfigError, match=f"iterable of prompts, got {came}; put a single prompt into a list"):
        engine.map_batches(given, SHORT)


def test_a_checkpoint_is_a_file(engine: Engine, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"checkpoint is a file, and '.*' is a folder; name a file in it"):
        engine.map_batches(["One"], SHORT, checkpoint=tmp_path)
    with pytest.raises(ConfigError, match="checkpoint is the path of a file, got 5"):
        engine.map_batches(["One"], SHORT, checkpoint=5)  # type: ignore[arg-type]


@pytest.mark.parametrize("line", [b"half\n", b'{"text": "no key"}\n', b'{"prompt": "", "other": 1}\n', b"\xff\n"])
def test_a_line_that_is_no_answer(engine: Engine, tmp_path: Path, line: bytes) -> None:
    file = tmp_path / "answers.jsonl"
    list(engine.map_batches(["One"], SHORT, checkpoint=file))
    with open(file, "ab") as damaged:
        damaged.write(line)
    with pytest.raises(
        ConfigError, match=r"is damaged: b.* is no answer.*; take that line and all behind it out or name"
    ):
        list(engine.map_batches(["One", "Two"], SHORT, checkpoint=file))
