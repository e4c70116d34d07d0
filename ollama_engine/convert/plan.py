"""Which tensors a GGUF file will hold and what each is made of: decided, and checked, before any weight is read."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from ollama_engine.convert.architecture import COMMON_IGNORED, Architecture, Sizes, TensorMap
from ollama_engine.convert.late_warnings import warn
from ollama_engine.convert.source.folder import Config
from ollama_engine.convert.source.tensors import StoredTensor, describe
from ollama_engine.convert.transforms import Transform, multiplied
from ollama_engine.errors import ModelFormatError
from ollama_engine.ml.gguf.gguf_file import IMAGE_PARTS

__all__ = ["PlannedTensor", "plan_tensors"]

logger = logging.getLogger(__name__)

SHOWN = 10
"""Tensors that one message names at most."""


@dataclass(frozen=True)
class PlannedTensor:
    """One tensor to write. `shape` is in numpy's order.

    Several `parts` are stacked on a new first dimension. `made` are values that no file holds.
    """

    name: str
    shape: tuple[int, ...]
    parts: tuple[StoredTensor, ...] = ()
    transform: Transform | None = None
    made: NDArray[np.float32] | None = None


def plan_tensors(
    architecture: Architecture, config: Config, sizes: Sizes, stored: Mapping[str, StoredTensor]
) -> list[PlannedTensor]:
    """All tensors of the file, those of one layer together.

    Raises ModelFormatError that names the tensors which are missing, have another shape than config.json asks for, or
    belong to nothing that the architecture declares.
    """
    tensors = _renamed(architecture, stored)
    planned: dict[str, PlannedTensor] = {}
    missing: dict[str, str] = {}
    used: set[str] = set()
    for tensor, layer in _declared(architecture, config, sizes):
        behind = 0 if tensor.after is None else sizes[tensor.after]
        target = tensor.target.replace("{i}", str(layer + behind))
        names = _source_names(tensor, layer, behind, sizes)
        present = [name for name in names if name in tensors]
        if tensor.left_out:
            used.update(present)
            continue
        if target in planned or (not present and tensor.optional):
            continue
        if len(present) < len(names):
            missing.setdefault(target, _say_missing(tensor, names, present, sizes))
            continue
        parts = tuple(tensors[name] for name in names)
        if tensor.if_it_fits and any(part.shape != _source_shape(tensor, sizes) for part in parts):
            continue
        _check_shapes(tensor, parts, sizes, config)
        transform = tensor.transform
        if tensor.factors is not None:
            transform = multiplied(tensor.factors(config, sizes), transform)
        planned[target] = PlannedTensor(target, _shape(tensor, parts, sizes), parts, transform)
        used.update(names)
    missing = {target: text for target, text in missing.items() if target not in planned}
    if missing:
        vision = all(target.startswith(IMAGE_PARTS) for target in missing)
        hint = "; the text part can be converted alone (--no-vision)" if vision else ""
        raise ModelFormatError(f"tensors are missing from the checkpoint: {_listed(list(missing.values()))}{hint}")
    _check_rest([tensor for name, tensor in tensors.items() if name not in used], architecture)
    made = [PlannedTensor(n, v.shape, made=v) for n, v in architecture.made_tensors(config, sizes).items()]
    return [*made, *planned.values()]


def _renamed(architecture: Architecture, stored: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
    """The tensors by names without the prefixes that come and go; those that carry no weights are left out."""
    ignored = re.compile("|".join((*COMMON_IGNORED, *architecture.ignored)))
    renamed: dict[str, StoredTensor] = {}
    for name, tensor in _supported(architecture, stored).items():
        if ignored.search(name):
            logger.debug("%s holds no weights; it is left out", name)
            continue
        for pattern, replacement in architecture.renames:
            name = re.sub(pattern, replacement, name)  # noqa: PLW2901
        other = renamed.setdefault(name, tensor)
        if other is not tensor:
            raise ModelFormatError(f"{other.name} and {tensor.name} are both {name}; the checkpoint holds it twice")
    return renamed


def _supported(architecture: Architecture, stored: Mapping[str, StoredTensor]) -> Mapping[str, StoredTensor]:
    """Without whole parts that no model here has, of which a warning tells."""
    for pattern, what in architecture.unsupported.items():
        kept = {name: tensor for name, tensor in stored.items() if not re.search(pattern, name)}
        if left := len(stored) - len(kept):
            warn(logger, "the part that reads %s is not supported: its %d tensors are left out", what, left)
        stored = kept
    return stored


def _declared(architecture: Architecture, config: Config, sizes: Sizes) -> Iterator[tuple[TensorMap, int]]:
    """(declaration, layer) in the order of the file: declarations of the same layers go layer by layer."""
    for layers, group in groupby(architecture.tensors, lambda tensor: tensor.layers if "{i}" in tensor.target else ""):
        declared = tuple(group)
        for layer in range(sizes[layers] if layers else 1):
            for tensor in declared:
                if tensor.applies is None or tensor.applies(config, layer):
                    yield tensor, layer


def _source_names(tensor: TensorMap, layer: int, behind: int, sizes: Sizes) -> list[str]:
    name = tensor.source.replace("{i}", str(layer)).replace("{behind}", str(layer + behind))
    if "{e}" not in name:
        return [name]
    return [name.replace("{e}", str(expert)) for expert in range(sizes["n_expert"])]


def _source_shape(tensor: TensorMap, sizes: Sizes) -> tuple[int, ...]:
    return tuple(sizes[n] if isinstance(n, str) else n for n in tensor.shape)


def _shape(tensor: TensorMap, parts: Sequence[StoredTensor], sizes: Sizes) -> tuple[int, ...]:
    shape = parts[0].shape
    if tensor.transform is not None:
        shape = tensor.transform.shape(shape, sizes)
    return (len(parts), *shape) if "{e}" in tensor.source else shape


# -- what is wrong -----------------------------------------------------------------------------------------------------


def _check_shapes(tensor: TensorMap, parts: Sequence[StoredTensor], sizes: Sizes, config: Config) -> None:
    expected = _source_shape(tensor, sizes)
    for part in parts:
        if part.shape != expected:
            names = ", ".join(str(n) for n in tensor.shape)
            raise ModelFormatError(
                f"{part.home}: {describe(part)} does not fit {config.home}, by which it is {list(expected)} ({names})"
            )


def _say_missing(tensor: TensorMap, names: Sequence[str], present: Sequence[str], sizes: Sizes) -> str:
    absent = next(name for name in names if name not in present)
    more = f" and {len(names) - len(present) - 1} like it" if len(names) - len(present) > 1 else ""
    return f"{absent} {list(_source_shape(tensor, sizes))}{more}"


def _check_rest(rest: Sequence[StoredTensor], architecture: Architecture) -> None:
    if rest:
        raise ModelFormatError(
            f"the checkpoint holds tensors that {architecture.name} does not have: "
            f"{_listed([describe(tensor) for tensor in rest])}; is config.json the one of these weights?"
        )


def _listed(texts: Sequence[str]) -> str:
    more = f" and {len(texts) - SHOWN} more" if len(texts) > SHOWN else ""
    return ", ".join(texts[:SHOWN]) + more
