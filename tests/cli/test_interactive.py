"""`run` without a prompt: the loop and its commands, first against a fake, then in a real terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from unittest.mock import patch

import pytest

from ollama_engine.cli.chat.answer import Answerer
from ollama_engine.cli.chat.interactive import HINT, continue_texts
from ollama_engine.cli.chat.settings import Settings, set_here
from ollama_engine.cli.errors import Flags
from ollama_engine.errors import ContextOverflowError, Option
from ollama_engine.runner.request.options import RequestOptions
from ollama_engine.sample import SamplingParams
from tests.cli.program import LETTERS, Terminal
from tests.cli.typed_lines import type_lines

ENDLESS = (*LETTERS, "--on-overflow=shift")


class FakeAnswerer(Answerer):
    """Remembers what was asked; some prompts fail."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, SamplingParams]] = []
        self.request_options: list[RequestOptions] = []
        self.images: list[list[bytes]] = []

    def answer(
        self, prompt: str, params: SamplingParams, request_options: RequestOptions, images: Sequence[bytes] = ()
    ) -> None:
        self.images.append(list(images))
        self.asked.append((prompt, params))
        self.request_options.append(request_options)
        if prompt == "stop me":
            raise KeyboardInterrupt
        if prompt == "too long":
            raise ContextOverflowError(
                "does not fit",
                advice=[
                    ("choose a larger ", Option("parallel")),
                    ("lower ", Option("num_keep")),
                    ("let it be cut with ", Option("on_overflow", "truncate")),
                ],
            )


@pytest.fixture
def talk(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    def run(lines: Iterable[str | Exception]) -> tuple[list[tuple[str, SamplingParams]], str]:
        waiting = type_lines(monkeypatch, lines)
        run.answerer = answerer = FakeAnswerer()
        skip = ("logprobs", "priority", "cache")
        write = set_here(Flags(), skip)
        continue_texts(answerer, Settings(SamplingParams(seed=1), RequestOptions(num_keep=2), write, skip))
        assert next(waiting, None) is None, "the loop ended early"
        return answerer.asked, capsys.readouterr().err.replace(">>> ", "")

    return run


def test_lines_are_prompts_of_their_own(talk) -> None:
    asked, said = talk(["one", "", "  two  ", "   "])
    assert asked == [("one", SamplingParams(seed=1)), ("two", SamplingParams(seed=1))]
    assert said == f"{HINT}\n\n"


def test_the_first_line_has_the_images() -> None:
    answerer, asked = FakeAnswerer(), iter(["one", "two"])
    with patch("builtins.input", lambda _="": next(asked, "/bye")):
        continue_texts(answerer, Settings(SamplingParams(), RequestOptions(), str), [b"cat", b"dog"])
    assert answerer.images == [[b"cat", b"dog"], []]


def test_bye_leaves(talk) -> None:
    assert talk(["one", "/bye"])[0] == [("one", SamplingParams(seed=1))]


def test_an_interrupted_or_failed_answer_is_not_the_end(talk) -> None:
    asked, said = talk(["stop me", "too long", "on"])
    assert [prompt for prompt, _ in asked] == ["stop me", "too long", "on"]
    assert "error: does not fit; lower num_keep or let it be cut with /set on_overflow truncate\n" in said


def test_a_line_that_is_not_utf_8_is_told(talk) -> None:
    asked, said = talk([UnicodeDecodeError("utf-8", b"a\xff", 1, 2, "invalid start byte"), "on"])
    assert [prompt for prompt, _ in asked] == ["on"]
    assert "error: byte 2 of the line is not UTF-8\n" in said
    asked, said = talk(["hi \udcff", "on"])  # as a terminal gives it
    assert [prompt for prompt, _ in asked] == ["on"]
    assert "error: the line: byte 4 (0xff) is not UTF-8; convert the text" in said


def test_set_changes_how_a_request_is_served_too(talk) -> None:
    _, said = talk(
        ["one", "/set on_overflow shift", "/set num-keep 3", "/set timeout 0", "two", "/set num_keep", "/set"]
    )
    assert talk.answerer.request_options == [RequestOptions(num_keep=2), RequestOptions("shift", 3)]
    assert "error: timeout is a number of seconds above 0" in said
    assert "  on_overflow        'shift'\n  num_keep           0\n" in said


@pytest.mark.parametrize(
    ("commands", "params"),
    [
        (["/set temperature 0.5"], {"temperature": 0.5}),
        (["/set top-k 3", "/set top_p 0.5"], {"top_k": 3, "top_p": 0.5}),
        (["/set stop THE  END"], {"stop": ("THE  END",)}),
        (["/set logit_bias 12=-inf 13=2"], {"logit_bias": {12: float("-inf"), 13: 2.0}}),
        (["/set seed"], {"seed": None}),
        (["/set top_k 3", "/set top_k"], {}),
        (["/set temperature -1"], {}),
        (["/set temperature warm"], {}),
        (["/set logprobs 3"], {}),
    ],
    ids=" ".join,
)
def test_set(talk, commands: list[str], params: dict[str, object]) -> None:
    asked, _ = talk([*commands, "go"])
    assert asked == [("go", SamplingParams(**{"seed": 1, **params}))]


@pytest.mark.parametrize(
    ("command", "answer"),
    [
        ("/help", "/set NAME VALUE"),
        ("/?", "/bye"),
        ("/set", "temperature        0.8"),
        ("/fly", "error: there is no command /fly; /help lists them"),
        ("/set speed 3", "error: there is no option speed; did you mean seed?"),
        ("/set xyzzy 3", "error: there is no option xyzzy; /set lists them"),
        ("/set logprobs 3", "error: there is no option logprobs"),
        ("/set top_k many", "error: top_k takes a whole number, got 'many'"),
        ("/set logit_bias 12", "error: logit_bias takes ID=NUMBER, got '12'"),
        ("/set temperature -1", "error: temperature must be"),
    ],
)
def test_what_commands_say(talk, command: str, answer: str) -> None:
    asked, said = talk([command])
    assert asked == []
    assert answer in said


# -- in a terminal -----------------------------------------------------------------------------------------------------

terminals = pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX terminals")


@terminals
def test_a_conversation_in_a_terminal(tiny: str) -> None:
    with Terminal("run", tiny, "--threads", "1", "--max-tokens", "3", "--verbose", *LETTERS) as terminal:
        terminal.wait_for(b">>> ")
        terminal.type(b"hello\n")
        assert b"answer       3 tokens" in terminal.wait_for(b">>> ")
        terminal.type(b"/set max_tokens 2\n")
        terminal.wait_for(b">>> ")
        terminal.type(b"hello\n")
        assert b"answer       2 tokens" in terminal.wait_for(b">>> ")
        assert terminal.end(b"/bye\n") == 0


@terminals
def test_ctrl_c_stops_an_answer_and_then_leaves(tiny: str) -> None:
    with Terminal("run", tiny, "--threads", "1", *ENDLESS) as terminal:
        terminal.wait_for(b">>> ")
        terminal.type(b"hello\n")
        terminal.wait_for(b"hello\r\n", more=20)
        terminal.type(b"\x03")
        assert b"Traceback" not in terminal.wait_for(b">>> ")
        terminal.type(b"/set max_tokens 1\n")
        terminal.wait_for(b">>> ")
        terminal.type(b"again\n")
        terminal.wait_for(b">>> ")
        assert terminal.end(b"\x03") == 130, "typed twice, the second time after a while"
        assert b"Traceback" not in terminal.shown


@terminals
def test_ctrl_d_leaves(tiny: str) -> None:
    with Terminal("run", tiny, "--threads", "1") as terminal:
        terminal.wait_for(b">>> ")
        assert terminal.end(b"\x04") == 0


@terminals
def test_ctrl_c_ends_a_single_answer_with_130(tiny: str) -> None:
    with Terminal("run", tiny, "--threads", "1", "hello", "--echo", *ENDLESS) as terminal:
        terminal.wait_for(b"hello", more=20)
        assert terminal.end(b"\x03") == 130
        assert b"Traceback" not in terminal.shown
