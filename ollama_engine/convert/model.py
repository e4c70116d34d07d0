"""Converts a model's folder: reads what it says, plans the file, and streams the tensors into it."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any, BinaryIO, NamedTuple

from ollama_engine.convert.architecture import Architecture, Sizes
from ollama_engine.convert.gguf_writing import OutTensor, Progress, data_size, write_model
from ollama_engine.convert.late_warnings import warn, warnings_last
from ollama_engine.convert.metadata import add_model, encode, model_keys, new_writer, told_numbers
from ollama_engine.convert.outtype import FILE_TYPES, KEPT, SAME, element_type
from ollama_engine.convert.plan import PlannedTensor, plan_tensors
from ollama_engine.convert.raw_metadata import keys_below
from ollama_engine.convert.registry import find_architecture
from ollama_engine.convert.rope import ROPE_FACTORS, has_factors, llama3_factors
from ollama_engine.convert.sentence_modules import SentenceModules
from ollama_engine.convert.source.checkpoint import open_checkpoint
from ollama_engine.convert.source.folder import Config, ModelFolder, read_config
from ollama_engine.convert.source.mxfp4 import with_packed
from ollama_engine.convert.source.scaled import check_quantization, with_scales
from ollama_engine.convert.source.tensors import StoredTensor
from ollama_engine.convert.streaming import file_bytes
from ollama_engine.convert.vision import read_processor
from ollama_engine.convert.vocab.export import add_tokenizer
from ollama_engine.convert.workers import Workers
from ollama_engine.errors import ConfigError, ModelFormatError, Option, UnsupportedModelError
from ollama_engine.ml.gguf.gguf_file import GGUFFile
from ollama_engine.ml.gguf.metadata import Metadata
from ollama_engine.new_file import FileSizes, check_target, write_new_file

__all__ = ["convert_model"]

logger = logging.getLogger(__name__)


def convert_model(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    outtype: str = "f16",
    *,
    vision: bool = True,
    threads: int | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
    target_model: str | os.PathLike[str] | None = None,
) -> FileSizes:
    """Write the model in the folder `source` as a GGUF file; returns the sizes of the weights' files and of this one.

    `outtype` is the type of matrices: f32, f16, bf16 or q8_0. Without `vision` the part that reads images is left out
    of models that have one; llama.cpp keeps it in a file of its own. `threads` are all cores if None. `progress` is
    called with (bytes written, bytes in all). `target_model`: the GGUF file of the model that an EAGLE-3 head drafts
    for, whose vocabulary it gets; no other folder takes one. No more than about twice the largest tensor is held in
    memory. The file appears when it is whole; where one exists, it is replaced with `overwrite` only.

    Raises UnsupportedModelError for an architecture or tokenizer that cannot be converted, and ModelFormatError for
    folders that are incomplete or contradict themselves. Raises ConfigError for an unknown outtype, less than one
    thread or a missing gguf package. Raises OSError: FileExistsError for a target that exists, ENOSPC on a full disk.
    """
    if outtype not in FILE_TYPES:
        raise ConfigError(Option("outtype"), f" is one of {', '.join(FILE_TYPES)}, got {outtype!r}")
    workers = Workers(threads)
    folder = ModelFolder(source)
    check_target(target, 0, overwrite=overwrite)
    with warnings_last(), ExitStack() as undo:
        config = read_config(folder)
        architecture = find_architecture(config).part(vision=vision)
        config = config.completed(architecture.defaults)
        target_file = _target_of(architecture, config, target_model, undo)
        if target_file is not None and architecture.told_by_target is not None:
            config = config.completed(architecture.told_by_target(Metadata(target_file.metadata)))
        writer = new_writer(architecture.name)
        check_quantization(config)
        stored = with_scales(with_packed(open_checkpoint(folder)), config)
        images = architecture.image_keys(read_processor(folder))
        modules = SentenceModules(folder)
        config = config.completed({**architecture.told_by_folder(folder), **modules.values})
        config, sizes, keys, planned = _plan(architecture, config, {**stored, **modules.tensors})
        keys = {**keys, **told_numbers(architecture, sizes, stored), **images, **modules.keys}
        add_model(writer, folder.path, architecture, keys, outtype, planned)
        if target_file is None and architecture.reads_text:
            add_tokenizer(writer, folder, config, sizes["n_vocab"], architecture.pre_names, architecture.chat_templates)
        elif target_file is None:
            writer.add_tokenizer_model("no_vocab")
        metadata = encode(writer)
        if target_file is not None:
            metadata += keys_below(target_file.files[0], "tokenizer.ggml.")
        tensors = [_announced(tensor, outtype, architecture.always_f32) for tensor in planned]
        size = len(metadata.data) + data_size(tensors)
        check_target(target, size, overwrite=overwrite)

    def write(file: BinaryIO) -> None:
        types = (tensor.dtype for tensor in tensors)
        with workers:
            pieces = file_bytes(zip(planned, types, strict=True), sizes, workers)
            write_model(file, metadata, tensors, pieces, progress)

    write_new_file(target, size, write, overwrite=overwrite)
    return FileSizes.of((tensor.home for tensor in stored.values()), target)


def _target_of(
    architecture: Architecture, config: Config, target_model: str | os.PathLike[str] | None, undo: ExitStack
) -> GGUFFile | None:
    """The file of the model that this one drafts for. Raises ConfigError where it is missing, or there is none."""
    if (target_model is None) == (architecture.told_by_target is None):
        return None if target_model is None else undo.enter_context(GGUFFile(target_model))
    if target_model is not None:
        raise ConfigError(Option("target_model"), f" is for EAGLE-3 heads, and {config.home} is of {architecture.name}")
    raise ConfigError(
        f"{config.home} is that of an EAGLE-3 head, which takes its vocabulary from the model that it drafts for",
        advice=[("name that model's GGUF file: ", Option("target_model"))],
    )


class _Plan(NamedTuple):
    """The config with what names of tensors tell, sizes and keys of it, and the tensors to write."""

    config: Config
    sizes: Sizes
    keys: Mapping[str, Any]
    tensors: list[PlannedTensor]


def _plan(architecture: Architecture, config: Config, stored: Mapping[str, StoredTensor]) -> _Plan:
    """The plan with the spare part of a checkpoint, where it is as declared, or without."""
    try:
        return _plan_all(architecture, config, stored)
    except (ModelFormatError, UnsupportedModelError) as error:
        if architecture.told_by_target is not None and isinstance(error, ModelFormatError):
            raise ModelFormatError(f"{error}; is the head for another model than the one that is named?") from error
        spare = [] if architecture.spare is None else [name for name in stored if re.search(architecture.spare, name)]
        if not spare:
            raise
        plan = _plan_all(architecture, config, {name: stored[name] for name in stored if name not in spare})
        warn(logger, "%d tensors that nothing uses yet, such as %s, are left out: %s", len(spare), spare[0], error)
        return plan


def _plan_all(architecture: Architecture, config: Config, stored: Mapping[str, StoredTensor]) -> _Plan:
    config = config.completed(architecture.told_by_names(stored))
    sizes = architecture.sizes(config)
    keys = model_keys(architecture, config, sizes)
    planned = plan_tensors(architecture, config, sizes, stored)
    if has_factors(config):
        if not architecture.llama3_rope:
            raise UnsupportedModelError(f"{config.home}: rope_type is llama3, which {architecture.name} does not have")
        factors = llama3_factors(
            config, keys["rope.dimension_count"] if "rope.dimension_count" in keys else sizes["head_dim"]
        )
        planned = [PlannedTensor(ROPE_FACTORS, factors.shape, made=factors), *planned]
    return _Plan(config, sizes, keys, planned)


def _announced(planned: PlannedTensor, outtype: str, always_f32: Sequence[str]) -> OutTensor:
    source = planned.parts[0].dtype if planned.parts else ""
    dtype = SAME[source] if source in KEPT else element_type(planned.name, planned.shape, outtype, always_f32)
    return OutTensor(planned.name, planned.shape[::-1] or (1,), dtype)
