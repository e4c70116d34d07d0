"""Sampling by keyword arguments, everywhere; what is none says what to do instead; a Modelfile's stand below both."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ollama_engine import Engine, SamplingParams, demo
from ollama_engine.errors import ConfigError, UnknownOptionError
from tests.store.layout import put_model

MESSAGES = [{"role": "user", "content": "One day"}]
GREEDY = SamplingParams(temperature=0, max_tokens=6)


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine("demo", num_ctx=128, parallel=2) as engine:
        yield engine


WAYS = "generate list stream submit agenerate chat chat_stream achat map_batches session asession fork".split()  # noqa: SIM905


@pytest.mark.parametrize(
    "ask",
    [
        lambda e, *p, **k: e.generate("One day", *p, **k).text,
        lambda e, *p, **k: e.generate(["One day"], *p, **k)[0].text,
        lambda e, *p, **k: "".join(chunk.text for chunk in e.stream("One day", *p, **k)),
        lambda e, *p, **k: e.submit("One day", *p, **k).result().text,
        lambda e, *p, **k: asyncio.run(e.agenerate("One day", *p, **k)).text,
        lambda e, *p, **k: e.chat(MESSAGES, *p, **k).content,
        lambda e, *p, **k: e.chat_stream(MESSAGES, *p, **k).result().content,
        lambda e, *p, **k: asyncio.run(e.achat(MESSAGES, *p, **k)).content,
        lambda e, *p, **k: next(e.map_batches(["One day"], *p, **k)).text,
        lambda e, *p, **k: _session(e).generate(*p, **k).text,
        lambda e, *p, **k: asyncio.run(_session(e).agenerate(*p, **k)).text,
        lambda e, *p, **k: e.fork(e.submit("One day", max_tokens=0), *p, **k).result().text,
    ],
    ids=WAYS,
)
def test_a_keyword_is_a_field_of_the_params(engine: Engine, ask: Callable[..., str]) -> None:
    """And stands above them."""
    expected = ask(engine, GREEDY)
    assert expected
    assert ask(engine, temperature=0, max_tokens=6) == expected
    assert ask(engine, SamplingParams(temperature=1.5, max_tokens=6), temperature=0) == expected


def _session(engine: Engine) -> Any:
    session = engine.session()
    session.append("One day")
    return session


def test_a_fork_has_what_is_not_said_of_its_source(engine: Engine) -> None:
    source = engine.submit("One day", GREEDY)
    assert engine.fork(source, max_tokens=2).result().text == engine.generate("One day", GREEDY, max_tokens=2).text


def test_values_are_checked(engine: Engine) -> None:
    with pytest.raises(ConfigError, match="top_p must be a finite number from 0 to 1, got 2"):
        engine.generate("x", top_p=2)
    with pytest.raises(ConfigError, match="append asks for no answer: it takes no max_tokens"):
        engine.session().append("x", max_tokens=3)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("ask", "hint"),
    [
        (lambda e: e.generate("x", stream=True), "call stream or astream"),
        (lambda e: e.chat(MESSAGES, stream=True), "for messages chat_stream"),
        (lambda e: e.stream("x", n=2), r"it belongs in Engine\.generate\(prompt, n=\.\.\.\)"),
        (lambda e: e.chat(MESSAGES, n=2), r"it belongs in generate\(engine\.apply_template\(messages\), n"),
        (lambda e: SamplingParams(n=2), r"it belongs in Engine\.generate\(prompt, n=\.\.\.\)"),
        (lambda e: e.chat(MESSAGES, system="Be brief."), 'put {"role": "system", "content": ...} before'),
        (lambda e: Engine("x", lora_path="a"), "adapters .LoRA. are not applied; merge one into"),
        (lambda e: Engine("x", speculative_model="a"), r"did you mean draft_model\?"),
        (lambda e: Engine("x", speculative_config={}), "a smaller model that guesses tokens is the draft_model of the"),
        (lambda e: e.generate("x", max_new_tokens=3), r"did you mean max_tokens\?"),
        (lambda e: e.generate("x", stop_token_ids=[1]), "stop ends an answer at a text; chunks of a stream have"),
        (lambda e: e.generate("x", options={"temperature": 0}), "a keyword argument of its own, such as temperature=0"),
        (lambda e: e.generate("x", frobnicate=3), "it takes on_overflow, .*, and the fields of SamplingParams$"),
    ],
    ids=range(13),
)  # fmt: skip
def test_what_is_none_says_what_to_do(engine: Engine, ask: Callable[[Engine], Any], hint: str) -> None:
    with pytest.raises(UnknownOptionError, match=hint):
        ask(engine)


def test_a_strange_role_is_told_once(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            engine.chat([{"role": "asistant", "content": "x"}, *MESSAGES], max_tokens=1)
    assert [record.message for record in caplog.records if "asistant" in record.message] == [
        "the role 'asistant' is none that the chat template names; usual ones are assistant, developer, system, tool, "
        "user. It is written as the template writes any role"
    ]


# -- names -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "models"))
    return tmp_path / "models"


STORED = [
    ("model", demo.path().read_bytes()), ("template", b"{{ range .Messages }}{{ .Content }}|{{ end }}"),
    ("system", b"Once"), ("messages", b'[{"role": "assistant", "content": "a fox"}]'),
    ("params", b'{"temperature": 0, "num_predict": 3, "num_ctx": 64, "seed": -1}'),
]  # fmt: skip


def test_an_engine_finds_the_models_of_the_store(root: Path) -> None:
    """With what the Modelfile says of calls, below what they say."""
    put_model(root, "registry.ollama.ai/library/story/latest", STORED)
    with Engine("Story", parallel=1) as named, Engine(demo.path(), num_ctx=64, parallel=1) as plain:
        assert named.info.num_ctx == 64
        short = plain.generate("One day", temperature=0, max_tokens=3)
        assert named.generate("One day").tokens == short.tokens
        assert len(named.generate("One day", max_tokens=5).tokens) == 5
        prompt = "".join(segment.text for segment in named.apply_template(MESSAGES))
        assert prompt == "Once|a fox|One day|"
        own = [{"role": "system", "content": "Two nights"}, *MESSAGES]
        assert "".join(segment.text for segment in named.apply_template(own)) == "a fox|Two nights|One day|"
        assert named.chat(MESSAGES).content == plain.generate(prompt, temperature=0, max_tokens=3).text
    report = Engine.plan_memory("story", parallel=1)
    assert sum(device.cache for device in report.devices) < 2**20, "64 cells, not 1024"


def test_names_that_mean_nothing_say_how_to_get_a_model(root: Path) -> None:
    for name, hint in (
        ("llama3.2", "ollama-engine pull llama3.2 downloads it, if a registry has it"),
        ("org/model", "ollama-engine pull hf.co/org/model downloads its GGUF files from the Hugging Face Hub"),
        ("hf.co/org/model", "ollama-engine pull hf.co/org/model downloads it, if its repository has GGUF files"),
        ("hf.co/org", "a model of the Hugging Face Hub is hf.co/USER/REPOSITORY"),
    ):
        with pytest.raises(FileNotFoundError, match=hint):
            Engine(name)
    for path in ("./llama3.2", "model.gguf", "/nowhere/model", Path("llama3.2")):
        with pytest.raises(FileNotFoundError) as caught:
            Engine(path)
        assert "pull" not in str(caught.value)


def test_a_modelfile_that_is_wrong_is_named(root: Path) -> None:
    put_model(root, "registry.ollama.ai/library/odd/latest", [STORED[0], ("params", b'{"top_p": 9}')])
    with pytest.raises(ConfigError, match="the Modelfile of odd:latest: top_p must be"):
        Engine("odd")
    put_model(root, "registry.ollama.ai/library/lora/latest", [STORED[0], ("adapter", b"GGUF")])
    with pytest.raises(ValueError, match="has an adapter"):
        Engine("lora")


def test_messages_to_generate(engine: Engine) -> None:
    with pytest.raises(ConfigError, match="is a dict; messages go to chat"):
        engine.generate(MESSAGES)  # type: ignore[call-overload]


def test_an_option_that_is_none(engine: Engine) -> None:
    """As callers pass on what they were not given: none of what a request has none of; a number has a default."""
    expected = engine.generate("One day", GREEDY)
    assert engine.generate("One day", GREEDY, logits_processors=None, stop=None).text == expected.text
    for name in ("temperature", "top_k"):
        with pytest.raises(ConfigError, match=f"{name} must be .*, got None; leave it out for the default"):
            engine.generate("One day", **{name: None})
