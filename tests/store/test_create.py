"""Making a model whose caller goes."""

from __future__ import annotations

import asyncio
import gc
import threading
from pathlib import Path
from typing import Any

import pytest

from ollama_engine.errors import ModelFormatError
from ollama_engine.store import ModelName, ModelStore
from ollama_engine.store import create as creating
from ollama_engine.store.create import Recipe, create_model
from ollama_engine.store.sources import SourceFile, folder_files
from tests.convert.folders import write_json
from tests.store.layout import put_model


def test_a_cancelled_create_leaves_no_exception_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """asyncio logs those that nobody has looked at, with their traceback."""
    put_model(tmp_path, "registry.ollama.ai/library/a/latest", [("model", b"GGUF")])
    begun, goes_on = threading.Event(), threading.Event()
    base, complaints = creating._base, []

    def held(*given: Any) -> Any:
        begun.set()
        assert goes_on.wait(60)
        return base(*given)

    async def cancelled() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
        recipe = Recipe(base=ModelName.parse("a"), system="x")
        task = asyncio.create_task(create_model(ModelStore(tmp_path), ModelName.parse("b"), recipe, lambda _: None))
        assert await asyncio.to_thread(begun.wait, 60)
        task.cancel()
        await asyncio.sleep(0)
        goes_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        del task
        gc.collect()

    monkeypatch.setattr(creating, "_base", held)
    asyncio.run(cancelled())
    gc.collect()
    assert complaints == []
    assert [entry.name.short for entry in ModelStore(tmp_path).entries()] == ["a:latest"]


def test_errors_name_the_folder_that_the_caller_knows(tmp_path: Path) -> None:
    """Conversion reads a temporary folder of links."""
    folder = tmp_path / "mine"
    folder.mkdir()
    write_json(folder / "config.json", {"architectures": ["LlamaForCausalLM"], "hidden_size": 0})
    (folder / "model.safetensors").write_bytes(b"\2\0\0\0\0\0\0\0{}")
    store, given = ModelStore(tmp_path / "store"), folder_files(folder)
    blobs = [SourceFile(f.name, digest=store.blobs.adopt(folder / f.name, lambda *_: None)) for f in given]
    for files, told in ((given, str(folder / "config.json")), (blobs, "the model's folder/config.json")):
        with pytest.raises(ModelFormatError) as raised:
            creating.create(store, ModelName.parse("b"), Recipe(files=files), lambda _: None)
        assert told in str(raised.value)
        assert "/tmp" not in str(raised.value).replace(str(tmp_path), "")
