"""What a model's Modelfile says stands below what a request says."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from ollama_engine import demo
from ollama_engine.server.app import create_app
from ollama_engine.server.library import Library, of_file
from ollama_engine.server.settings import ServerSettings
from ollama_engine.store.stored_model import StoredModel
from tests.server.ollama.asking import ask, error_of, post
from tests.server.running import running
from tests.support.tiny import write_tiny_llama

TEMPLATE = "{{ range .Messages }}<{{ .Role }}>{{ .Content }}{{ end }}<assistant>"
QUESTION = [{"role": "user", "content": "Who?"}]


class Named(Library):
    """A library of models that are given."""

    def __init__(self, models: dict[str, StoredModel]) -> None:
        super().__init__()
        self._models = models

    def find(self, name: str) -> StoredModel:
        return self._models[name] if name in self._models else super().find(name)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, StoredModel]:
    folder = tmp_path_factory.mktemp("models")
    infill = {f"tokenizer.ggml.fim_{name}_token_id": number for name, number in (("pre", 5), ("suf", 6), ("mid", 7))}
    filled = write_tiny_llama(folder / "infill.gguf", metadata=infill).path
    encoder = write_tiny_llama(folder / "encoder.gguf", metadata={"llama.pooling_type": 1}).path
    told = replace(
        of_file("told", demo.path()), digest="0" * 64, template=TEMPLATE, system="Be kind.",
        parameters={"num_predict": 3, "temperature": 0.0, "stop": ["nothing"], "num_ctx": 128},
        messages=({"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}),
    )  # fmt: skip
    return {"told": told, "infill": of_file("infill", Path(filled)), "encoder": of_file("encoder", Path(encoder))}


@pytest.fixture(scope="module")
def address(models: dict[str, StoredModel]) -> Iterator[str]:
    with running(create_app(ServerSettings(shutdown_timeout=5, max_loaded_models=4), library=Named(models))) as url:
        yield url


def rendered(address: str, path: str, **body: Any) -> str:
    text: str = ask(address, path, model="told", _debug_render_only=True, **body)["_debug_info"]["rendered_template"]
    return text


def test_template_system_and_messages(address: str) -> None:
    begin = "<system>Be kind.<user>Hi<assistant>Ho"
    assert rendered(address, "chat", messages=QUESTION) == f"{begin}<user>Who?<assistant>"
    assert rendered(address, "generate", prompt="Who?") == f"{begin}<user>Who?<assistant>"


def test_a_system_message_stands_in_place_of_the_models(address: str) -> None:
    own = [{"role": "system", "content": "Be brief."}, *QUESTION]
    assert rendered(address, "chat", messages=own) == "<user>Hi<assistant>Ho<system>Be brief.<user>Who?<assistant>"


def test_a_request_stands_above(address: str) -> None:
    assert rendered(address, "generate", prompt="Who?", system="Be brief.").startswith("<system>Be brief.<user>Hi")
    own = "{{ .System }}|{{ .Prompt }}!"
    assert rendered(address, "generate", prompt="Who?", template=own, context=[1]) == "Be kind.|Who?!"
    assert "<user>Hi" not in rendered(address, "generate", prompt="Who?", context=[1])


def test_parameters(address: str) -> None:
    story = {"model": "told", "prompt": "One day, a", "raw": True}
    assert ask(address, "generate", **story)["eval_count"] == 3
    assert ask(address, "generate", **story, options={"num_predict": 2})["eval_count"] == 2
    (row,) = [model for model in httpx.get(f"{address}/api/ps").json()["models"] if model["name"] == "told:latest"]
    assert row["context_length"] == 128


def test_a_suffix(address: str) -> None:
    found = ask(address, "generate", model="infill", prompt="a", suffix="b", options={"num_predict": 1})
    assert found["prompt_eval_count"] == 5
    ids = found["context"]
    assert (ids[0], ids[2], ids[4]) == (5, 6, 7)


def test_a_model_that_only_embeds(address: str) -> None:
    refused = post(address, "generate", {"model": "encoder", "prompt": "x"})
    assert error_of(refused) == (400, '"encoder" does not support generate')
    refused = post(address, "chat", {"model": "encoder", "messages": QUESTION})
    assert error_of(refused) == (400, '"encoder" does not support chat')


def test_keep_alive(address: str) -> None:
    def loaded() -> dict[str, str]:
        return {row["name"]: row["expires_at"] for row in httpx.get(f"{address}/api/ps").json()["models"]}

    assert ask(address, "generate", model="infill", keep_alive=-1)["done_reason"] == "load"
    assert loaded()["infill:latest"] > "2300"
    assert ask(address, "generate", model="infill", keep_alive="10m")["done_reason"] == "load"
    assert loaded()["infill:latest"] < "2100"
    unloaded = ask(address, "generate", model="infill", keep_alive=0)
    assert (unloaded["response"], unloaded["done_reason"]) == ("", "unload")
    assert "infill:latest" not in loaded()
