"""Options that a call does not take: which one may be meant, and where it belongs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import Any

import pytest

import ollama_engine
from ollama_engine import Engine, EngineConfig, SamplingParams
from ollama_engine.errors import ConfigError, UnknownOptionError
from ollama_engine.option_names import ALIASES, NOT_HERE, meant, unknown_option
from ollama_engine.runner.chat.options import ChatOptions
from ollama_engine.runner.request.options import RequestOptions
from tests.support.tiny import write_tiny_llama

SAID: list[tuple[Callable[..., object], dict[str, Any], str]] = [
    (SamplingParams, {"temp": 1}, "SamplingParams takes no 'temp'; did you mean temperature?"),
    (SamplingParams, {"temperatur": 1}, "SamplingParams takes no 'temperatur'; did you mean temperature?"),
    (SamplingParams, {"Top-P": 1}, "SamplingParams takes no 'Top-P'; did you mean top_p?"),
    (SamplingParams, {"num_ctx": 1}, "SamplingParams takes no 'num_ctx'; it belongs in Engine(model, num_ctx=...)"),
    (SamplingParams, {"n_ctx": 1}, "SamplingParams takes no 'n_ctx'; did you mean Engine(model, num_ctx=...)?"),
    (EngineConfig, {"n_threads": 1}, "EngineConfig takes no 'n_threads'; did you mean threads?"),
    (Engine, {"n_ctx": 1}, "Engine takes no 'n_ctx'; did you mean num_ctx?"),
    (Engine, {"model_path": "x"}, "Engine takes no 'model_path'; did you mean model?"),
    (Engine, {"temperature": 1}, "Engine takes no 'temperature'; it belongs in SamplingParams(temperature=...)"),
    (Engine, {"md": "x"}, "Engine takes no 'md'; did you mean draft_model?"),
    (Engine, {"ctk": "q8_0"}, "Engine takes no 'ctk'; did you mean kv_cache_type?"),
    (
        Engine,
        {"gpu_memory_utilization": 0.9},
        "Engine takes no 'gpu_memory_utilization': the cache is taken when the "
        "model is loaded, for num_ctx times parallel tokens",
    ),
    (
        SamplingParams,
        {"min_tokens": 3},
        "SamplingParams takes no 'min_tokens': logit_bias bans tokens (-inf), and "
        "logits_processors may change any logit",
    ),
    (Engine, {"timeout": 1}, "Engine takes no 'timeout'; it belongs in generate(prompt, timeout=...)"),
]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    path = write_tiny_llama(tmp_path_factory.mktemp("tiny") / "tiny.gguf", n_layer=1).path
    with Engine(path, num_ctx=64, threads=1) as made:
        yield made


@pytest.mark.parametrize(("call", "options", "told"), SAID, ids=str)
def test_what_may_be_meant(call: Callable[..., object], options: dict[str, Any], told: str) -> None:
    for kind in (UnknownOptionError, TypeError, ConfigError):
        with pytest.raises(kind) as raised:
            call(**options)
        assert str(raised.value) == told


@pytest.mark.parametrize(("options", "told"), [
    ({"max_token": 3}, "did you mean max_tokens?"),
    ({"n_predict": 3}, "did you mean max_tokens?"),
    ({"num_ctx": 3}, "it belongs in Engine(model, num_ctx=...)"),
    ({"priorty": 3}, "did you mean priority?"),
    ({"tools": []}, "it belongs in a chat, as in chat(messages, tools=...)"),
    ({"enable_thinking": True}, "did you mean a chat, as in chat(messages, think=...)?"),
    ({"wibble": 3}, "it takes on_overflow, num_keep, priority, timeout, cache, cache_salt, prompt_token_ids, "
                    "truncate_prompt, logits_processors, reasoning_budget, draft, format, "
                    "and the fields of SamplingParams"),
], ids=str)  # fmt: skip
def test_options_of_requests(engine: Engine, options: Any, told: str) -> None:
    session = engine.session()
    for call in (lambda: engine.generate([1], **options), lambda: session.generate(**options)):
        with pytest.raises(UnknownOptionError) as raised:
            call()
        assert str(raised.value) == f"a request takes no {next(iter(options))!r}; {told}"


@pytest.mark.parametrize(("options", "told"), [
    ({"response_format": {}}, "did you mean format?"),
    ({"guided_json": {}}, "did you mean format?"),
    ({"json_schema": {}}, "did you mean format?"),
    ({"grammar": ""}, "did you mean format?"),
    ({"max_completion_tokens": 3}, "did you mean max_tokens?"),
    ({"n": 3}, "it belongs in generate(engine.apply_template(messages), n=...)"),
], ids=str)  # fmt: skip
def test_options_of_openai_s_chats(engine: Engine, options: Any, told: str) -> None:
    with pytest.raises(UnknownOptionError) as raised:
        engine.chat([{"role": "user", "content": "hi"}], **options)
    assert str(raised.value) == f"a chat takes no {next(iter(options))!r}; {told}"


def test_the_opposite_is_not_meant() -> None:
    assert meant("min_tokens", ["max_tokens"]) is None
    assert meant("max_token", ["max_tokens", "min_keep"]) == "max_tokens"


def test_other_mistakes_are_told_by_python() -> None:
    with pytest.raises(TypeError, match="positional argument"):
        SamplingParams(1)  # type: ignore[misc]
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'model'"):
        Engine()  # type: ignore[call-arg]


def test_every_alias_stands_for_an_option_and_is_none() -> None:
    known = {field.name for cls in (EngineConfig, SamplingParams, RequestOptions, ChatOptions) for field in fields(cls)}
    known |= {"model", "projector", "images"}
    assert set(ALIASES.values()) <= known
    assert not set(ALIASES) & known
    assert not set(NOT_HERE) & {*ALIASES, *known}
    assert str(unknown_option("f", "zzz", ["a", "b"])) == "f takes no 'zzz'; it takes a, b"


def test_signatures_are_those_of_the_options() -> None:
    assert list(inspect.signature(SamplingParams).parameters) == [field.name for field in fields(SamplingParams)]
    assert list(inspect.signature(Engine).parameters)[:3] == ["model", "num_ctx", "parallel"]


def test_the_package_shows_its_public_names_only() -> None:
    assert dir(ollama_engine) == sorted(ollama_engine.__all__)
    assert all(hasattr(ollama_engine, name) for name in dir(ollama_engine))
