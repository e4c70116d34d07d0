"""`run` with a prompt: given, piped, echoed; options that reach the engine; what goes to which stream."""

from __future__ import annotations

import io
import re
import sys

import pytest

from ollama_engine import demo
from ollama_engine.cli.chat.answer import Answerer, usage_text
from ollama_engine.engine import Engine
from ollama_engine.runner.request.options import RequestOptions
from ollama_engine.runner.request.results import Usage
from ollama_engine.sample import SamplingParams
from tests.cli.program import LETTERS, LETTERS_BIAS, program
from tests.support.deeper_model import write_deeper
from tests.support.tiny import write_tiny_llama

GREEDY = ("--temperature", "0", "--num-ctx", "128", "--threads", "1")


@pytest.fixture(scope="module")
def engine(tiny: str):
    with Engine(tiny, num_ctx=128, parallel=1, threads=1) as opened:
        yield opened


def expected(engine: Engine, prompt: str, **params: object) -> str:
    text = engine.generate(prompt, SamplingParams(temperature=0.0, **params)).text
    return text if text.endswith("\n") else text + "\n"


def test_the_answer_is_the_engines(cli, tiny: str, engine: Engine) -> None:
    result = cli("run", tiny, "hello there", *GREEDY, "--max-tokens", "12")
    assert (result.code, result.err) == (0, "")
    assert result.out == expected(engine, "hello there", max_tokens=12)


def test_a_prompt_behind_options_is_found(cli, tiny: str, engine: Engine) -> None:
    assert cli("run", tiny, *GREEDY, "--max-tokens", "5", "hi").out == expected(engine, "hi", max_tokens=5)
    assert cli("run", tiny, *GREEDY, "--max-tokens", "5", "--", "-x").out == expected(engine, "-x", max_tokens=5)
    assert cli("run", "--max-tokens", "5", *GREEDY, tiny, "hi").out == expected(engine, "hi", max_tokens=5)


def test_options_reach_sampling(cli, tiny: str, engine: Engine) -> None:
    result = cli("run", tiny, "hello", *GREEDY, "--max-tokens", "6", *LETTERS)
    assert result.out == expected(engine, "hello", max_tokens=6, logit_bias=LETTERS_BIAS)
    assert re.fullmatch("[a-z]{6}\n", result.out)
    stop = result.out[3]
    result = cli("run", tiny, "hello", *GREEDY, "--max-tokens", "6", *LETTERS, "--stop", stop, "--stop", "never")
    assert result.out == expected(engine, "hello", max_tokens=6, logit_bias=LETTERS_BIAS, stop=(stop,))
    assert stop not in result.out


def test_a_seed_gives_the_same_answer(cli, tiny: str) -> None:
    answers = {cli("run", tiny, "hello", "--seed", seed, "--max-tokens", "9").out for seed in ("7", "7", "8")}
    assert len(answers) == 2


@pytest.mark.parametrize(
    "options",
    [
        ["--no-mmap"],
        ["--threads", "1"],
        ["--batch-size", "4"],
        ["--flash-attention", "off"],
        ["--kv-cache-type", "f32"],
        ["--gpu-layers", "0"],
    ],
    ids=" ".join,
)
def test_engine_options_are_taken(cli, tiny: str, options: list[str]) -> None:
    result = cli("run", tiny, "hello", *GREEDY, "--max-tokens", "2", *options)
    assert (result.code, result.err) == (0, "")


def test_a_projector_that_does_not_fit(cli, tiny: str) -> None:
    result = cli("run", tiny, "hello", "--mmproj", tiny)
    assert (result.code, result.out) == (2, "")
    assert "--mmproj is a file of architecture 'llama', and not the vision part of a model" in result.err
    missing = cli("run", tiny, "hello", "--mmproj", "nowhere.gguf")
    assert missing.code == 1
    assert "nowhere.gguf: No such file" in missing.err


def test_verbose_speaks_on_standard_error_only(cli, tiny: str, engine: Engine) -> None:
    options = ("--verbose", "--kv-cache-type", "f32", "--flash-attention", "off")
    result = cli("run", tiny, "hello", *GREEDY, "--max-tokens", "8", *LETTERS, *options)
    assert result.code == 0
    assert result.out.strip()
    facts = r"loaded in \d+\.\d\d s: llama, num_ctx 128, 1 threads, flash attention off, cache f32\n"
    assert re.search(facts, result.err)
    assert re.search(r"device +weights +mapped", result.err)
    assert re.search(r"prompt +\d+ tokens in +\d+\.\d\d s, +\d+\.\d tokens/s\nanswer +8 tokens in", result.err)
    assert result.err.endswith("ended by length\n")


def test_echo_prints_the_prompt_first(cli, tiny: str, engine: Engine) -> None:
    result = cli("run", tiny, "hello", *GREEDY, "--max-tokens", "4", "--echo")
    assert result.out == "hello" + expected(engine, "hello", max_tokens=4)
    assert cli("run", tiny, "hello", "--max-tokens", "0", "--echo").out == "hello\n"


def test_an_answer_of_nothing_prints_nothing(cli, tiny: str) -> None:
    result = cli("run", tiny, "hello", "--max-tokens", "0", "--verbose")
    assert (result.code, result.out) == (0, "")
    assert re.search(r"answer +0 tokens in +0\.00 s\n", result.err)


def test_a_full_context_is_said(cli, tiny: str) -> None:
    result = cli("run", tiny, "hello", "--num-ctx", "16", *LETTERS)
    assert result.code == 0
    assert result.err == (
        "warning: the answer ends because the context is full (--num-ctx is 16); choose a larger one, or let answers "
        "go on with --on-overflow shift\n"
    )
    assert cli("run", tiny, "hello", "--num-ctx", "16", "--max-tokens", "4", *LETTERS).err == ""


def test_the_default_context_is_not_beyond_the_models(cli, tmp_path) -> None:
    short = write_tiny_llama(tmp_path / "short.gguf", n_ctx=64).path
    result = cli("run", short, "hello", "--max-tokens", "1", "--verbose")
    assert "num_ctx 64," in result.err
    assert "warning" not in result.err
    assert "num_ctx 100 is more than" in cli("run", short, "hello", "--max-tokens", "1", "--num-ctx", "100").err


# -- the prompt from a pipe --------------------------------------------------------------------------------------------


def pipe(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data), encoding="ascii"))


@pytest.mark.parametrize(
    ("data", "prompt"),
    [
        (b"hello", "hello"),
        (b"hello\n", "hello"),
        (b"two\nlines\n\n", "two\nlines\n"),
        ("Grüße".encode(), "Grüße"),
    ],
)
def test_a_piped_prompt(
    cli, tiny: str, engine: Engine, monkeypatch: pytest.MonkeyPatch, data: bytes, prompt: str
) -> None:
    pipe(monkeypatch, data)
    assert cli("run", tiny, *GREEDY, "--max-tokens", "6").out == expected(engine, prompt, max_tokens=6)


def test_an_empty_input_is_wrong_usage(cli, tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pipe(monkeypatch, b"")
    result = cli("run", tiny)
    assert (result.code, result.out, result.err) == (2, "", "error: there is no PROMPT, and standard input is empty\n")


def test_words_without_quotes_are_told_how_to_be_a_prompt(cli, tiny: str) -> None:
    result = cli("run", tiny, "hello", "world")
    assert result.code == 2
    assert "PROMPT is one argument, put it in quotes: 'hello world'" in result.err


def test_what_is_not_utf_8_is_refused(cli, tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pipe(monkeypatch, b"one\ntwo\xff")
    result = cli("run", tiny)
    told = "byte 8, in line 2, (0xff) is not UTF-8; convert the text, for instance with iconv\n"
    assert (result.code, result.out, result.err) == (1, "", f"error: standard input: {told}")
    result = cli("run", tiny, "Gr\udcfc\udcdfe")
    assert (result.code, result.err.partition(";")[0]) == (2, "error: PROMPT: byte 3 (0xfc) is not UTF-8")
    result = cli("run", "demo", "hi", "--system", "\udcff")
    assert (result.code, result.err.partition(";")[0]) == (2, "error: --system: byte 1 (0xff) is not UTF-8")


def test_a_prompt_that_is_too_long_is_cut_or_shifted(cli, tiny: str, engine: Engine) -> None:
    prompt, small = "a b c d e f g h i j k l", ("--num-ctx", "8", "--max-tokens", "3", "--temperature", "0", "-t1")
    with Engine(tiny, num_ctx=8, parallel=1, threads=1) as other:
        for options, terms in (
            (("--on-overflow", "truncate"), {"on_overflow": "truncate"}),
            (("--on-overflow", "shift", "--num-keep", "2"), {"on_overflow": "shift", "num_keep": 2}),
        ):
            text = other.generate(prompt, SamplingParams(temperature=0, max_tokens=3), **terms).text
            result = cli("run", tiny, prompt, *small, *options)
            assert (result.code, result.out.rstrip("\n")) == (0, text.rstrip("\n"))
    assert cli("run", tiny, prompt, *small).code == 1


def test_an_answer_that_takes_too_long_is_a_failure(cli, tiny: str) -> None:
    result = cli("run", tiny, "hello", "--timeout", "1e-9")
    assert (result.code, result.err) == (1, "error: the request has not ended within its timeout of 1e-09 s\n")


def test_a_given_prompt_leaves_the_pipe_alone(cli, tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pipe(monkeypatch, b"rest")
    assert cli("run", tiny, "hello", "--max-tokens", "1").code == 0
    assert sys.stdin.read() == "rest"


def test_no_prompt_and_no_input_is_wrong_usage(cli, tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    result = cli("run", tiny)
    assert result.code == 2
    assert "there is no PROMPT" in result.err


def test_the_demo_answers_a_pipe_in_a_process_of_its_own() -> None:
    done = program("run", "demo", "--max-tokens", "16", "--seed", "1", given=b"Once upon a time")
    assert (done.code, done.err) == (0, "")
    assert len(done.out.split()) > 3


# -- pieces ------------------------------------------------------------------------------------------------------------


def test_usage_counts_the_tokens_after_the_first() -> None:
    text = usage_text(Usage(100, 11, 40, 0.0, 0.5, 2.0))
    assert text.splitlines() == [
        "prompt     100 tokens in    0.50 s,    200.0 tokens/s, 40 of them cached",
        "answer      11 tokens in    2.00 s,      5.0 tokens/s",
    ]


def test_verbose_names_the_draft_model_and_counts_guesses(cli, tmp_path) -> None:
    deeper = write_deeper(demo.path(), tmp_path / "deeper.gguf", 1, 0.05)
    asked = ("run", deeper, "One day, a little cat", *GREEDY, "--max-tokens", "2", "--verbose")
    assert "draft" not in cli(*asked).err
    assert "\ndraft model: demo\n" in cli(*asked, "--draft-model", "demo").err
    usage = Usage(100, 11, 40, 0.0, 0.5, 2.0, drafted_tokens=7, accepted_tokens=5)
    assert usage_text(usage).splitlines()[2:] == ["drafts       7 tokens guessed, 5 of them right"]


def test_an_interrupted_answer_ends_its_line(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted(io.StringIO):
        def flush(self) -> None:
            if len(self.getvalue()) > 5 and not self.getvalue().endswith("\n"):
                raise KeyboardInterrupt

    out = Interrupted()
    monkeypatch.setattr(sys, "stdout", out)
    params = SamplingParams(logit_bias=LETTERS_BIAS)
    with pytest.raises(KeyboardInterrupt):
        Answerer(engine).answer("hello", params, RequestOptions())
    assert out.getvalue().endswith("\n")
    assert engine.generate("hello", SamplingParams(max_tokens=1)).tokens, "the engine serves the next request"
