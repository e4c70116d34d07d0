"""A folder that holds a tokenizer and no weights -> a GGUF file that holds a vocabulary only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ollama_engine.convert.gguf_writing import write_header
from ollama_engine.convert.metadata import encode, new_writer
from ollama_engine.convert.source.folder import Config, ModelFolder
from ollama_engine.convert.vocab.export import add_tokenizer
from ollama_engine.ml.gguf.gguf_file import GGUFFile
from ollama_engine.tokenizer import Tokenizer, from_gguf
from tests.convert.folders import write_json


def export(
    folder: Path,
    files: Mapping[str, Any],
    n_vocab: int,
    config: Mapping[str, Any] | None = None,
    *,
    pre_names: Sequence[str] = (),
) -> dict[str, Any]:
    """Write `files` (JSON, text or bytes) into a folder, convert, and give the metadata. The GGUF is `vocab.gguf`."""
    source = folder / "source"
    source.mkdir(exist_ok=True)
    for name, value in files.items():
        (source / name).parent.mkdir(exist_ok=True)
        if isinstance(value, bytes):
            (source / name).write_bytes(value)
        elif isinstance(value, str):
            (source / name).write_text(value, encoding="utf-8")
        else:
            write_json(source / name, value)
    writer = new_writer("llama")
    add_tokenizer(writer, ModelFolder(source), Config(config or {}, "config.json"), n_vocab, pre_names)
    with open(folder / "vocab.gguf", "wb") as file:
        write_header(file, encode(writer), [])
    with GGUFFile(folder / "vocab.gguf") as made:
        return {key.removeprefix("tokenizer.ggml."): value for key, value in made.metadata.items()}


def exported_tokenizer(
    folder: Path, files: Mapping[str, Any], n_vocab: int, config: Mapping[str, Any] | None = None
) -> Tokenizer:
    """Our tokenizer of such a folder."""
    export(folder, files, n_vocab, config)
    return from_gguf(folder / "vocab.gguf")
