"""`ollama-engine show`: prints a model file's metadata. Reads only the header; a vocabulary-only file is enough."""

from __future__ import annotations

import argparse
import json
import math
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from ollama_engine.cli.errors import UsageError
from ollama_engine.cli.models import fit
from ollama_engine.cli.models.model_parts import PARTS, part_of
from ollama_engine.cli.options import add_model, find_model
from ollama_engine.cli.tables import count, pairs, printable, table
from ollama_engine.errors import ModelFormatError
from ollama_engine.ml.gguf.gguf_file import GGUFFile, TensorInfo
from ollama_engine.ml.gguf.metadata import MetadataValue
from ollama_engine.ml.gguf.next_tokens import ASSISTANT, EAGLE3, next_token_tensors
from ollama_engine.size_texts import size
from ollama_engine.store.stored_model import StoredModel
from ollama_engine.tokenizer.vocab import read_vocabulary

__all__ = ["add_arguments", "facts", "main"]

SHAPE_KEYS = (
    "context_length",
    "block_count",
    "embedding_length",
    "feed_forward_length",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.sliding_window",
    "expert_count",
    "expert_used_count",
    "pooling_type",
)
"""Keys of the architecture that the report shows, a line each."""

IMAGE_KEYS = ("image_size", "patch_size", "max_num_tiles", "block_count", "embedding_length")
"""Keys of the part that reads images, behind "vision."."""

SHOWN_CHARACTERS = 100
SHOWN_ENTRIES = 6

NO_VOCABULARY = "no_vocab"
"""The `tokenizer.ggml.model` of a model that reads no text."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of this command."""
    add_model(parser)
    parser.add_argument("--tensors", action="store_true", help="also list all tensors, dimensions fastest first")
    parser.add_argument("--metadata", action="store_true", help="also list all metadata; only --json shows them whole")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    group = parser.add_argument_group(
        "one text of a model of the store, and nothing else"
    ).add_mutually_exclusive_group()
    for part, told in PARTS.items():
        group.add_argument(f"--{part}", dest="part", action="store_const", const=part, help=told)
    fit.add_arguments(parser)


def main(args: argparse.Namespace) -> None:
    path, stored = find_model(args.model)
    if args.fit:
        fit.main(args, path, stored)
        return
    fit.refuse_without_fit(args)
    if args.part is not None:
        if stored is None:
            raise UsageError(f"--{args.part} has no effect: {args.model} is a file, not a model of the store")
        print(part_of(stored, args.part))
        return
    with GGUFFile(path) as file:
        known = facts(file)
        if stored is not None:
            known["stored"] = _stored(stored)
        if args.json:
            if args.tensors:
                known["tensors"] = [_tensor_facts(tensor) for tensor in file.tensors.values()]
            if args.metadata:
                known["metadata"] = {key: _json_value(value) for key, value in file.metadata.items()}
            print(json.dumps(known, indent=2))
            return
        print(_summary(known))
        if args.metadata:
            print("\n" + table((key, _short(value)) for key, value in file.metadata.items()))
        if args.tensors and file.tensors:
            print("\n" + _tensor_table(file))


# -- facts -------------------------------------------------------------------------------------------------------------


def facts(file: GGUFFile) -> dict[str, Any]:
    """Facts about a file, ready for JSON. Sizes are bytes; a fact that the file lacks is None or absent."""
    metadata = file.metadata
    architecture = metadata.get("general.architecture")
    tensors = file.tensors.values()
    return {
        "path": file.path,
        "files": len(file.files),
        "file_bytes": sum(os.path.getsize(path) for path in file.files),
        "gguf_version": file.version,
        "architecture": architecture if isinstance(architecture, str) else None,
        "name": _json_value(metadata.get("general.name")),
        "license": _json_value(metadata.get("general.license")),
        "shape": {key: _json_value(metadata[full]) for key, full in _shape_keys(metadata, architecture)},
        "images": _images(metadata, architecture),
        "head": _head(file),
        "n_tensors": len(tensors),
        "n_parameters": sum(math.prod(t.shape) for t in tensors),
        "tensor_bytes": sum(t.nbytes for t in tensors),
        "types": _types(file),
        "tokenizer": _tokenizer(metadata),
        "chat_template": "tokenizer.chat_template" in metadata,
    }


def _stored(stored: StoredModel) -> dict[str, Any]:
    """Facts that only the store knows, not the model's file."""
    return {
        "name": stored.name,
        "digest": stored.digest,
        "projector": None if stored.projector_path is None else str(stored.projector_path),
        "template": stored.template,
        "system": stored.system or None,
        "parameters": dict(stored.parameters),
        "messages": list(stored.messages),
        "licenses": list(stored.licenses),
    }


def _shape_keys(metadata: Mapping[str, MetadataValue], architecture: object) -> list[tuple[str, str]]:
    return [(key, f"{architecture}.{key}") for key in SHAPE_KEYS if f"{architecture}.{key}" in metadata]


def _images(metadata: Mapping[str, MetadataValue], architecture: object) -> dict[str, Any] | None:
    """Sizes of the part that reads images; None where the file has none. An mmproj file has little else."""
    begin = f"{architecture}.vision."
    if f"{begin}block_count" not in metadata:
        return None
    found = {key: _json_value(metadata[begin + key]) for key in IMAGE_KEYS if begin + key in metadata}
    projector = metadata.get("clip.projector_type", metadata.get("clip.vision.projector_type"))
    return {**found, "projector_type": projector} if isinstance(projector, str) else found


def _head(file: GGUFFile) -> dict[str, Any] | None:
    """The head of a file that predicts tokens further ahead; of one for another model, for which models it does."""
    if file.metadata.get("general.architecture") == EAGLE3:
        keys = {"embedding_length": "target_hidden_size", "blocks": "target_layers"}
        return {name: _json_value(file.metadata.get(f"{EAGLE3}.{key}")) for name, key in keys.items()}
    if file.metadata.get("general.architecture") == ASSISTANT:
        return {"embedding_length": _json_value(file.metadata.get(f"{ASSISTANT}.embedding_length_out"))}
    names = next_token_tensors(file.metadata, file.tensors)
    tensors = [file.tensors[name] for name in names]
    return {"tensors": len(tensors), "parameters": sum(math.prod(t.shape) for t in tensors)} if tensors else None


def _types(file: GGUFFile) -> dict[str, dict[str, int]]:
    """For each tensor type, most bytes first: tensors, parameters and bytes."""
    types: dict[str, dict[str, int]] = {}
    for tensor in file.tensors.values():
        sums = types.setdefault(tensor.dtype, {"tensors": 0, "parameters": 0, "bytes": 0})
        sums["tensors"] += 1
        sums["parameters"] += math.prod(tensor.shape)
        sums["bytes"] += tensor.nbytes
    return dict(sorted(types.items(), key=lambda item: -item[1]["bytes"]))


def _tokenizer(metadata: Mapping[str, MetadataValue]) -> dict[str, Any] | None:
    """Facts about the vocabulary, with `error` where this engine cannot use it. None when the file has none."""
    if "tokenizer.ggml.model" not in metadata:
        return None
    known: dict[str, Any] = {
        "model": _json_value(metadata["tokenizer.ggml.model"]),
        "pre": _json_value(metadata.get("tokenizer.ggml.pre")),
    }
    try:
        vocab = read_vocabulary(metadata)
    except ModelFormatError as error:
        return {**known, "error": str(error)}
    special = {"bos": vocab.bos_id, "eos": vocab.eos_id, "unknown": vocab.unknown_id}
    ends = sorted(vocab.eog_ids)
    ids = sorted({i for i in (*special.values(), *ends) if i is not None})
    return {
        **known,
        "n_vocab": len(vocab.texts),
        **{f"{kind}_id": id_ for kind, id_ in special.items()},
        "eog_ids": ends,
        "texts": {str(i): vocab.texts[i] for i in ids},
        "add_bos": vocab.add_bos,
        "add_eos": vocab.add_eos,
    }


def _tensor_facts(tensor: TensorInfo) -> dict[str, Any]:
    return {"name": tensor.name, "type": tensor.dtype, "shape": list(tensor.shape), "bytes": tensor.nbytes}


def _json_value(value: object) -> Any:
    """A metadata value that JSON can hold: arrays as lists, NaN and infinities as text."""
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, list | tuple):
        return [_json_value(entry) for entry in value]
    return value


# -- for people --------------------------------------------------------------------------------------------------------


def _summary(known: dict[str, Any]) -> str:
    bits = known["tensor_bytes"] * 8 / known["n_parameters"] if known["n_parameters"] else 0.0
    files = f" in {known['files']} files" if known["files"] > 1 else ""
    rows: list[tuple[str, str | None]] = [
        *_stored_rows(known.get("stored")),
        ("path", known["path"]),
        ("size", f"{size(known['file_bytes'])}{files}, GGUF version {known['gguf_version']}"),
        ("name", _optional(known["name"])),
        ("license", _optional(known["license"])),
        ("architecture", known["architecture"] or "not stated"),
        ("parameters", f"{count(known['n_parameters'])} ({known['n_parameters']}) in {known['n_tensors']} tensors, "
                       f"{bits:.2f} bits each" if known["n_tensors"] else "none: a vocabulary only"),
        *((key.replace("_", " "), _short(value)) for key, value in known["shape"].items()),
        *_tokenizer_rows(known["tokenizer"]),
        ("reads images", _image_row(known["images"])),
        ("drafts", _head_row(known["head"])),
        ("chat template", "yes" if known["chat_template"] else "no"),
    ]  # fmt: skip
    text = pairs(rows)
    if known["types"]:
        text += "\n\n" + _type_table(known["types"])
    return text


def _stored_rows(stored: dict[str, Any] | None) -> list[tuple[str, str | None]]:
    if stored is None:
        return []
    parameters = ", ".join(f"{name} {json.dumps(value)}" for name, value in stored["parameters"].items())
    return [
        ("model", f"{stored['name']}, {stored['digest'][:12]}"),
        ("images by", stored["projector"]),
        ("system", _optional(stored["system"])),
        ("options", parameters or None),
        ("template", None if stored["template"] is None else _short(stored["template"])),
    ]


def _image_row(known: dict[str, Any] | None) -> str:
    if known is None:
        return "no"
    parts = [
        f"of size {known['image_size']}" if "image_size" in known else "of any size",
        f"up to {known['max_num_tiles']} tiles" if "max_num_tiles" in known else None,
        f"in patches of {known['patch_size']}" if "patch_size" in known else None,
        f"by {known['block_count']} blocks",
        f"projector {printable(known['projector_type'])}" if "projector_type" in known else None,
    ]
    return ", ".join(part for part in parts if part)


def _head_row(known: dict[str, Any] | None) -> str | None:
    if known is None:
        return None
    if "blocks" in known:
        blocks = ", ".join(str(block) for block in known["blocks"] or [])
        return (
            f"as an EAGLE-3 head, for a model whose embedding length is {known['embedding_length']}, of whose blocks "
            f"it reads {blocks}"
        )
    if "embedding_length" in known:
        return f"for a Gemma 4 whose embedding length is {known['embedding_length']}, as its draft model"
    return f"{count(known['parameters'])} parameters in {known['tensors']} tensors predict tokens further ahead"


def _optional(value: object) -> str | None:
    return None if value is None else _short(value)


def _tokenizer_rows(known: dict[str, Any] | None) -> list[tuple[str, str | None]]:
    if known is None or known["model"] == NO_VOCABULARY:
        return [("tokenizer", "none")]
    kind = str(known["model"]) + (f", {known['pre']}" if known["pre"] else "")
    if "error" in known:
        return [("tokenizer", f"{kind}; cannot be used: {known['error']}")]

    def token(id_: int | None) -> str:
        return "none" if id_ is None else f"{id_} {known['texts'][str(id_)]!r}"

    return [
        ("tokenizer", f"{kind}, {known['n_vocab']} tokens"),
        ("begin", token(known["bos_id"]) + (", put before every prompt" if known["add_bos"] else "")),
        ("end", token(known["eos_id"]) + (", put after every prompt" if known["add_eos"] else "")),
        ("ends an answer", ", ".join(map(token, known["eog_ids"])) or "nothing"),
    ]


def _type_table(types: dict[str, dict[str, int]]) -> str:
    total = sum(sums["bytes"] for sums in types.values())
    rows = [("type", "tensors", "parameters", "size", "share")]
    for name, sums in types.items():
        share = f"{sums['bytes'] / total:.1%}" if total else "-"
        rows.append((name, str(sums["tensors"]), count(sums["parameters"]), size(sums["bytes"]), share))
    return table(rows, right=(1, 2, 3, 4))


def _tensor_table(file: GGUFFile) -> str:
    rows = [("tensor", "type", "shape", "size")]
    for tensor in file.tensors.values():
        rows.append((tensor.name, tensor.dtype, " x ".join(map(str, tensor.shape)), size(tensor.nbytes)))
    return table(rows, right=(3,))


def _short(value: object) -> str:
    """A metadata value on one line; a long one is cut off."""
    if isinstance(value, np.ndarray | list):
        first = ", ".join(_short(entry) for entry in list(value[:SHOWN_ENTRIES]))
        return f"[{first}]" if len(value) <= SHOWN_ENTRIES else f"[{first}, ... {len(value)} in all]"
    text = printable(str(value))
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]} ... {len(text)} characters"
