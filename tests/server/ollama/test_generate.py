"""/api/generate byte by byte."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from unittest.mock import patch

import httpx
import pytest
from fastapi import FastAPI

from ollama_engine.runner.core.submission import Submission
from ollama_engine.server.app import create_app
from ollama_engine.server.ollama.answer_lines import PieceCounter
from ollama_engine.server.settings import ServerSettings
from tests.server.ollama.asking import ask, error_of, idle, lines_of, post
from tests.server.running import engine_of, running
from tests.support.engine_thread import held

GREEDY = {"temperature": 0, "num_predict": 8}
STAMP = re.compile(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}Z")
TIMES = ("total_duration", "load_duration", "prompt_eval_duration", "eval_duration")


def test_a_stream_is_lines_of_json(demo_server: str) -> None:
    *pieces, last = lines_of(demo_server, "generate", prompt="One day", options=GREEDY)
    for piece in pieces:
        assert list(piece) == ["model", "created_at", "response", "done"]
        assert piece["model"] == "demo"
        assert STAMP.fullmatch(piece["created_at"])
        assert piece["response"]
        assert piece["done"] is False
    assert list(last) == ["model", "created_at", "response", "done", "done_reason", "total_duration", "load_duration",
                          "prompt_eval_count", "prompt_eval_duration", "eval_count", "eval_duration",
                          "context"]  # fmt: skip
    assert (last["response"], last["done"], last["done_reason"], last["eval_count"]) == ("", True, "length", 8)
    assert all(isinstance(last[name], int) and last[name] >= 0 for name in TIMES)
    assert last["prompt_eval_duration"] + last["eval_duration"] <= last["total_duration"]


def test_without_a_stream_it_is_one_object(demo_server: str) -> None:
    pieces = lines_of(demo_server, "generate", prompt="One day", options=GREEDY)
    whole = ask(demo_server, "generate", prompt="One day", options=GREEDY)
    assert whole["response"] == "".join(piece["response"] for piece in pieces)
    assert whole["context"] == pieces[-1]["context"]
    assert whole["eval_count"] == 8


def test_what_a_form_calls_itself_is_json_too(demo_server: str) -> None:
    for kind in ("application/x-www-form-urlencoded", "text/plain"):
        headers = {"Content-Type": kind}
        body = b'{"model": "demo", "prompt": "One day", "stream": false, "options": {"num_predict": 1}}'
        assert httpx.post(f"{demo_server}/api/generate", content=body, headers=headers, timeout=60).status_code == 200


# -- context -----------------------------------------------------------------------------------------------------------


def test_context_has_the_prompt_and_the_answer(demo_server: str) -> None:
    found = ask(demo_server, "generate", prompt="One day", options=GREEDY)
    shown = ask(demo_server, "generate", prompt="One day", _debug_render_only=True)
    ids = httpx.post(f"{demo_server}/detokenize", json={"model": "demo", "tokens": found["context"]}).json()
    assert len(found["context"]) == found["prompt_eval_count"] + found["eval_count"]
    assert ids["content"].endswith(found["response"])
    assert "One day" in shown["_debug_info"]["rendered_template"]


def test_a_context_stands_before_the_prompt(demo_server: str) -> None:
    first = ask(demo_server, "generate", prompt="One day", options=GREEDY)
    second = ask(demo_server, "generate", prompt="And then?", context=first["context"], options=GREEDY)
    alone = ask(demo_server, "generate", prompt="And then?", options=GREEDY)
    assert second["context"][: len(first["context"])] == first["context"]
    assert second["prompt_eval_count"] == len(first["context"]) + alone["prompt_eval_count"]
    assert second["context"][len(first["context"]) : -8] == alone["context"][:-8]


# -- raw, suffix and templates -----------------------------------------------------------------------------------------


def test_raw_takes_the_prompt_as_it_is(demo_server: str) -> None:
    found = ask(demo_server, "generate", prompt="One day, a girl", raw=True, options=GREEDY)
    assert "context" not in found
    ids = httpx.post(f"{demo_server}/tokenize", json={"model": "demo", "content": "One day, a girl"}).json()["tokens"]
    assert found["prompt_eval_count"] == len(ids) + 1  # the begin token


@pytest.mark.parametrize("field", [{"template": "{{ .Prompt }}"}, {"system": "x"}, {"context": [1]}], ids=str)
def test_raw_takes_nothing_else(demo_server: str, field: dict[str, Any]) -> None:
    refused = post(demo_server, "generate", {"model": "demo", "prompt": "x", "raw": True} | field)
    assert error_of(refused) == (400, "raw mode does not support template, system, or context")


def test_a_template_of_the_request(demo_server: str) -> None:
    template = "{{ if .System }}S={{ .System }};{{ end }}P={{ .Prompt }};R={{ .Response }}"
    shown = ask(demo_server, "generate", prompt="hi", system="be", template=template, _debug_render_only=True)
    assert shown["_debug_info"] == {"rendered_template": "S=be;P=hi;R=", "image_count": 0}
    refused = post(demo_server, "generate", {"model": "demo", "prompt": "x", "template": "{{ if }}"})
    assert refused.status_code == 400
    filled = ask(
        demo_server, "generate", prompt="a", suffix="b", template="<{{ .Prompt }}|{{ .Suffix }}>",
        _debug_render_only=True,
    )  # fmt: skip
    assert filled["_debug_info"]["rendered_template"] == "<a|b>"


def test_a_suffix_needs_tokens_for_it(demo_server: str) -> None:
    refused = post(demo_server, "generate", {"model": "demo", "prompt": "a", "suffix": "b"})
    assert error_of(refused) == (400, '"demo" does not support insert')


# -- log-probabilities -------------------------------------------------------------------------------------------------


def test_log_probabilities(demo_server: str) -> None:
    body = {"prompt": "One day", "options": GREEDY, "logprobs": True, "top_logprobs": 3}
    whole = ask(demo_server, "generate", **body)
    streamed = [entry for line in lines_of(demo_server, "generate", **body) for entry in line.get("logprobs", ())]
    assert [entry["token"] for entry in streamed] == [entry["token"] for entry in whole["logprobs"]]
    assert b"".join(bytes(entry["bytes"]) for entry in streamed).decode() == whole["response"]
    for entry in whole["logprobs"]:
        assert len(entry["top_logprobs"]) == 3
        assert entry["top_logprobs"][0] == {name: entry[name] for name in ("token", "logprob", "bytes")}
    plain = ask(demo_server, "generate", prompt="One day", options=GREEDY, logprobs=True)
    assert all(list(entry) == ["token", "logprob", "bytes"] for entry in plain["logprobs"])


# -- the end of answers and of models ----------------------------------------------------------------------------------


def test_a_stop_text_ends(demo_server: str) -> None:
    text = ask(demo_server, "generate", prompt="One day", options=GREEDY)["response"]
    word = text.split()[2]
    found = ask(demo_server, "generate", prompt="One day", options=GREEDY | {"stop": [word]})
    assert found["done_reason"] == "stop"
    assert found["response"] == text[: text.index(word)]


def test_a_piece_that_repeats_ends() -> None:
    counter = PieceCounter()
    pieces = [*["a", "b"] * 40, *["na ", " na", "na"] * 10, "na", "na", "x"]
    assert [number for number, piece in enumerate(pieces) if counter.too_often(piece)] == [111]


def test_an_empty_prompt_loads(demo_server: str) -> None:
    assert ask(demo_server, "generate")["done_reason"] == "load"
    (line,) = lines_of(demo_server, "generate")
    assert list(line) == ["model", "created_at", "response", "done", "done_reason"]
    assert [model["name"] for model in httpx.get(f"{demo_server}/api/ps").json()["models"]].count("demo:latest") == 1


def test_a_client_that_leaves_frees_its_slot(demo_server: str, demo_app: FastAPI) -> None:
    """Before the first line, between lines, and where nothing is streamed."""
    endless = {"model": "demo", "prompt": "One day", "raw": True,
               "format": {"type": "array", "minItems": 10_000, "items": {"enum": [1, 2, 3]}},
               "options": {"num_predict": 900, "temperature": 1}}  # fmt: skip
    with httpx.stream("POST", f"{demo_server}/api/generate", json=endless, timeout=60) as answer:
        next(answer.iter_lines())
    assert idle(demo_server)
    with held(engine_of(demo_app)), pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{demo_server}/api/generate", json=endless | {"stream": False}, timeout=0.2)
    assert idle(demo_server)


def test_a_full_context_shifts_or_ends(demo_server: str) -> None:
    digits = {"type": "array", "minItems": 10_000, "items": {"enum": [1, 2, 3]}}
    body = {"prompt": "One day", "raw": True, "format": digits, "shift": False, "options": {"num_predict": 2000}}
    ended = ask(demo_server, "generate", **body)
    assert ended["done_reason"] == "length"
    assert ended["eval_count"] < 1024
    gone_on = ask(demo_server, "generate", **body | {"shift": True, "options": {"num_predict": 1200}})
    assert gone_on["eval_count"] == 1200


@pytest.mark.parametrize(("given", "draft"), [(None, None), (0, "off"), (4, None)])
def test_no_tokens_are_guessed_where_that_is_asked_for(demo_server: str, given: int | None, draft: str | None) -> None:
    with patch.object(Submission, "_drafter", return_value=None) as drafter:
        ask(demo_server, "generate", prompt="One day", options={**GREEDY, "draft_num_predict": given})
    assert [call.args[0].draft for call in drafter.call_args_list] == [draft]


def test_a_context_that_a_request_gives_is_its_own_whatever_others_give(tmp_path: Path) -> None:
    """One that gives none takes what is loaded: docs/server.md, "Options"."""
    with running(create_app(ServerSettings(context_length=128, shutdown_timeout=5, models=tmp_path))) as address:

        def answer(**options: int) -> str:
            return str(
                ask(address, "generate", prompt="One day", options=GREEDY | {"num_predict": 24} | options)["response"]
            )

        first = answer(num_ctx=128)
        small = answer(num_ctx=7)
        assert (answer(), answer(num_ctx=128), answer()) == (small, first, first)
        assert small != first
