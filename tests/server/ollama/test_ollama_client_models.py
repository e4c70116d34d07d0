"""The published client of Ollama, unmodified, looks after the server's models."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ollama_engine.server.app import create_app
from ollama_engine.server.settings import ServerSettings
from tests.server.running import running
from tests.store.fake_registry import serving
from tests.support.tiny import write_tiny_llama

ollama = pytest.importorskip("ollama", reason="the extra `clients` is not installed")


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Any]:
    settings = ServerSettings(models=tmp_path / "models", context_length=128, shutdown_timeout=5)
    with running(create_app(settings)) as address, ollama.Client(host=address) as made:
        yield made


def test_a_models_life(client: Any, tmp_path: Path) -> None:
    path = write_tiny_llama(tmp_path / "tiny.gguf", metadata={"general.file_type": 0}).path
    digest = client.create_blob(path)
    told = [
        progress.status
        for progress in client.create(
            "mine", files={"tiny.gguf": digest}, template="{{ .Prompt }}", system="Be brief.",
            parameters={"stop": ["zz"], "temperature": 0.0}, license="L", quantize="q8_0", stream=True,
        )
    ]  # fmt: skip
    assert told[-1] == "success"
    listed, *packaged = client.list().models
    assert [model.model for model in packaged] == ["demo:latest", "demo-vision:latest"]
    assert (listed.model, listed.details.quantization_level, listed.details.family) == ("mine:latest", "Q8_0", "llama")
    shown = client.show("mine")
    assert (shown.template, shown.license) == ("{{ .Prompt }}", "L")
    assert shown.modelinfo["general.architecture"] == "llama"
    assert shown.capabilities == ["completion"]
    assert client.copy("mine", "me/other").status == "success"
    assert client.generate("me/other", "ab", options={"num_predict": 3}).eval_count == 3
    assert [model.model for model in client.ps().models] == ["me/other:latest"]
    assert client.create("derived", from_="mine", system="New.").status == "success"
    assert client.delete("mine").status == "success"
    assert {model.model for model in client.list().models[:-2]} == {"me/other:latest", "derived:latest"}
    with pytest.raises(ollama.ResponseError, match="model 'mine' not found") as missing:
        client.show("mine")
    assert missing.value.status_code == 404


def test_pull_and_push(client: Any, tmp_path: Path) -> None:
    path = Path(write_tiny_llama(tmp_path / "tiny.gguf").path)
    with serving() as fake:
        fake.add("me/m/latest", [("model", path.read_bytes())])
        name = f"{fake.host}/me/m"
        told = list(client.pull(name, insecure=True, stream=True))
        assert told[0].status == "pulling manifest"
        assert told[-1].status == "success"
        assert any(progress.completed == progress.total == path.stat().st_size for progress in told)
        assert client.pull(name, insecure=True).status == "success"
        with pytest.raises(ollama.ResponseError, match="not found"):
            client.pull(f"{fake.host}/me/none", insecure=True)
    with pytest.raises(ollama.ResponseError, match="not found"):
        client.push("me/none")
