"""A new model of the store: from another one, from GGUF files, or from a folder with safetensors."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from ollama_engine.async_tasks import wait_until_ended
from ollama_engine.convert import quantize_model
from ollama_engine.errors import ConfigError, ModelNotFoundError
from ollama_engine.store.blobs import TEMPORARY
from ollama_engine.store.gguf_facts import human_count, read_facts
from ollama_engine.store.manifest import CONFIG_TYPE, Layer, Manifest
from ollama_engine.store.model_store import ModelStore
from ollama_engine.store.names import ModelName
from ollama_engine.store.reading import holds_images, read_json
from ollama_engine.store.sources import SourceFile, file_layers
from ollama_engine.store.transfers import Report, TransferProgress

__all__ = ["Recipe", "create", "create_model", "weights_config"]

ROLES: Final = ("system", "user", "assistant", "tool")
FLOAT_TYPES: Final = ("F32", "F16", "BF16")


@dataclass(frozen=True)
class Recipe:
    """How a model is made.

    Attributes:
        base: the model of the store that it is made from; None for files.
        files: GGUF files, or those of a folder with safetensors, with their paths in that folder.
        adapters: GGUF files of adapters.
        quantize: "q4_K_M" ... for weights that are floats; "" to leave them.
        template, system: instead of the base's; None keeps these.
        parameters: beside and above the base's.
        messages: instead of the base's; None keeps these.
        licenses: beside the base's.
        config: fields of Ollama's ConfigV2 ("renderer", "parser", "requires").
    """

    base: ModelName | None = None
    files: Sequence[SourceFile] = ()
    adapters: Sequence[SourceFile] = ()
    quantize: str = ""
    template: str | None = None
    system: str | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)
    messages: Sequence[Mapping[str, Any]] | None = None
    licenses: Sequence[str] = ()
    config: Mapping[str, Any] = field(default_factory=dict)


def create(store: ModelStore, name: ModelName, recipe: Recipe, report: Report) -> None:
    """Make a model and give it its name; a model that has this name is replaced. Computes for as long as it takes.

    Raises ModelNotFoundError for a base that is not in the store. Raises ConfigError for a recipe that names nothing to
    make a model of, or has messages that are none, and ChatError for a template that cannot be read. Raises
    ModelFormatError or UnsupportedModelError for files that cannot be a model.
    """
    _check_texts(recipe)
    report(TransferProgress("gathering model components"))
    layers, config = _base(store, recipe)
    if recipe.files:
        layers += file_layers(store, recipe.files, report)
    layers += file_layers(store, recipe.adapters, report, adapters=True)
    if not any(layer.kind == "model" for layer in layers):
        raise ConfigError("a model is made from another one or from GGUF or safetensors files, got neither")
    if recipe.quantize:
        layers = [_quantized(store, layer, recipe.quantize, report) for layer in layers]
    layers = _with_texts(store, layers, recipe)
    config = {**config, **weights_config(store, layers), **recipe.config}
    config["rootfs"] = {"type": "layers", "diff_ids": [layer.digest for layer in layers]}
    written = store.blobs.write(json.dumps(config).encode())
    manifest = Manifest.of(Layer(CONFIG_TYPE, written.digest, written.size), tuple(layers))
    report(TransferProgress("writing manifest"))
    store.put(name, manifest)
    report(TransferProgress("success"))


def _base(store: ModelStore, recipe: Recipe) -> tuple[list[Layer], dict[str, Any]]:
    """Layers and config of the model that the new one is made from, claimed so that they stay until it is there."""
    if recipe.base is None:
        return [], {"architecture": "amd64", "os": "linux"}
    store.find(recipe.base)  # says which blob is damaged, if any
    manifest = store.entry(recipe.base).manifest
    for layer in manifest.blobs:
        if store.blobs.claim(layer.digest) is None:
            raise ModelNotFoundError(f"blob {layer.digest} was deleted a moment ago; pull {recipe.base.short} again")
    config = read_json(manifest.config, store.blobs) if manifest.config.digest else {}
    layers = list(manifest.layers)
    if recipe.files:  # these are the weights instead
        layers = [layer for layer in layers if layer.kind not in ("model", "projector")]
    return layers, config if isinstance(config, dict) else {}


async def create_model(store: ModelStore, name: ModelName, recipe: Recipe, report: Report) -> None:
    """`create` in a thread. When the caller is cancelled it ends at its next report, and leaves nothing behind."""
    loop, stopped = asyncio.get_running_loop(), threading.Event()

    def tell(progress: TransferProgress) -> None:
        if stopped.is_set():
            raise asyncio.CancelledError
        loop.call_soon_threadsafe(report, progress)

    # A thread of its own: quantizing takes minutes, and some of them at a time would leave no thread to others.
    executor = ThreadPoolExecutor(1, f"create {name.short}")
    task = asyncio.ensure_future(loop.run_in_executor(executor, create, store, name, recipe, tell))
    executor.shutdown(wait=False)
    try:
        await asyncio.wait([task])  # early releases of Python 3.14 log what a shielded future raises
    except asyncio.CancelledError:
        stopped.set()
        await wait_until_ended(task)
        raise
    task.result()


# -- weights -----------------------------------------------------------------------------------------------------------


def _quantized(store: ModelStore, layer: Layer, quant: str, report: Report) -> Layer:
    """A model's layer, with smaller weights. Raises ConfigError for weights that are no floats."""
    if layer.kind != "model":
        return layer
    before = read_facts(store.blobs.path(layer.digest)).file_type
    if before == quant.upper():
        return layer
    if before not in FLOAT_TYPES:
        raise ConfigError(f"quantization is only supported for F16, BF16 and F32 models, this one is {before}")
    title = f"quantizing {before} model to {quant.upper()}"

    def progress(done: int, total: int) -> None:
        report(TransferProgress(title, layer.digest, total, done))

    with temporary(store) as path:
        quantize_model(store.blobs.path(layer.digest), path, quant, progress=progress)
        return store.blobs.take(path, "model")


@contextmanager
def temporary(store: ModelStore) -> Iterator[Path]:
    """A name for a file that is removed at the end, unless it was made a blob."""
    store.blobs.folder.mkdir(parents=True, exist_ok=True)
    path = store.blobs.folder / f".{os.urandom(8).hex()}{TEMPORARY}"
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)


def weights_config(store: ModelStore, layers: Sequence[Layer]) -> dict[str, Any]:
    """The config's fields about the weights."""
    model = next(layer for layer in layers if layer.kind == "model")
    facts = read_facts(store.blobs.path(model.digest))
    families = [facts.architecture]
    if any(layer.kind == "projector" for layer in layers):
        families.append("clip")
    fields = {
        "model_format": "gguf",
        "model_family": facts.architecture,
        "model_families": families,
        "model_type": human_count(facts.n_parameters),
        "file_type": facts.file_type,
        "context_length": facts.context_length,
        "embedding_length": facts.embedding_length,
    }
    return {key: value for key, value in fields.items() if value is not None}


# -- texts -------------------------------------------------------------------------------------------------------------


def _check_texts(recipe: Recipe) -> None:
    """Raise ChatError or ConfigError for a template or messages with which the model could answer nothing."""
    from ollama_engine.chat.go_template import GoTemplate  # noqa: PLC0415 (jinja2: 0.1 s of its start)

    if recipe.template is not None:
        GoTemplate(recipe.template)
    for number, message in enumerate(recipe.messages or ()):
        if message.get("role") not in ROLES or not isinstance(message.get("content", ""), str):
            raise ConfigError(
                f"messages[{number}]: expected a role of {', '.join(ROLES)} and a text as content, got {message!r:.80}"
            )
        if not holds_images(message):
            raise ConfigError(f"messages[{number}].images: expected a list of image files in base64")


def _with_texts(store: ModelStore, layers: Sequence[Layer], recipe: Recipe) -> list[Layer]:
    """The layers with those that the recipe replaces and adds."""
    made = list(layers)

    def replace(kind: str, data: str | None) -> None:
        made[:] = [layer for layer in made if layer.kind != kind]
        if data is not None:
            made.append(_text_layer(store, kind, data))

    if recipe.template is not None:
        replace("prompt", None)
        replace("template", recipe.template)
    if recipe.system is not None:
        replace("system", recipe.system)
    if recipe.parameters:
        before: dict[str, Any] = {}
        for layer in made:
            if layer.kind == "params":
                before |= read_json(layer, store.blobs) or {}
        replace("params", json.dumps({**before, **recipe.parameters}))
    if recipe.messages is not None:
        replace("messages", json.dumps(list(recipe.messages)) if recipe.messages else None)
    for text in recipe.licenses:
        license_layer = _text_layer(store, "license", text)
        if license_layer not in made:
            made.append(license_layer)
    return made


def _text_layer(store: ModelStore, kind: str, text: str) -> Layer:
    written = store.blobs.write(text.encode("utf-8", "surrogateescape"))
    return Layer.of(kind, written.digest, written.size)
