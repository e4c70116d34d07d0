"""Modules: a model declares its weights by GGUF name, and binding looks them up.

    class MLP(nn.Module):
        gate = nn.Linear("ffn_gate", "n_embd", "n_ff")
        down = nn.Linear("ffn_down", "n_ff", "n_embd")

Dimensions are attributes of the model's options (or numbers), in ggml's order: a layer from n_embd to n_ff is
[n_embd, n_ff]. Binding checks them, so a file whose tensors do not fit its metadata is refused while loading.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar, overload

from ollama_engine.errors import ModelFormatError
from ollama_engine.ml.graph.tensor import Tensor

Dim = str | int


@dataclass(frozen=True)
class Scope:
    """The place where a module looks for its weights: all tensors of the file, the options, and a name prefix."""

    weights: Mapping[str, Tensor]
    options: Any
    prefix: str = ""
    used: set[str] = field(default_factory=set)

    def below(self, name: str) -> Scope:
        """The scope of a part: `blk.3.` below the root."""
        return Scope(self.weights, self.options, f"{self.prefix}{name}.", self.used)

    @property
    def block(self) -> int:
        """The number of the block that this is the scope of: 3 in `blk.3.`."""
        return int(self.prefix.split(".")[1])

    def size(self, dim: Dim) -> int:
        """A declared dimension as a number."""
        return dim if isinstance(dim, int) else int(getattr(self.options, dim))

    def find(self, name: str, dims: tuple[Dim, ...]) -> Tensor | None:
        """A tensor of this scope with the declared shape, None if the file has none. Raises ModelFormatError."""
        full = self.prefix + name
        tensor = self.weights.get(full)
        if tensor is None:
            return None
        expected = tuple(self.size(d) for d in dims)
        shape = tuple(tensor.dim(i) for i in range(max(len(expected), len(tensor.shape))))
        if shape != expected:
            meaning = ", ".join(str(d) for d in dims)
            raise ModelFormatError(
                f"tensor {full} has shape {list(shape)}; the metadata ask for {list(expected)} ({meaning})"
            )
        self.used.add(full)
        return tensor

    def require(self, names: Sequence[str], dims: tuple[Dim, ...]) -> Tensor:
        """The first of `names` that the file has; see `find`. Raises ModelFormatError if it has none."""
        for name in names:
            tensor = self.find(name, dims)
            if tensor is not None:
                return tensor
        wanted = " or ".join(self.prefix + name for name in names)
        alike = sorted(n for n in self.weights if n.startswith(self.prefix) and n not in self.used)[:8]
        hint = f"; unused tensors there: {', '.join(alike)}" if alike else ""
        raise ModelFormatError(f"the file has no tensor {wanted} of shape {[self.size(d) for d in dims]}{hint}")


class Weight:
    """A declaration of one or more tensors under one GGUF name; bound copies hold the tensors."""

    def __init__(self, name: str, *dims: Dim, alt: str | None = None, optional: bool = False) -> None:
        self.name = name
        self.dims = dims
        self.alt = alt
        self.optional = optional
        self.weight: Tensor | None = None

    def bind(self, scope: Scope) -> Any:
        """A copy of this declaration that holds the tensors found in `scope`. Raises ModelFormatError if missing."""
        bound = copy.copy(self)
        names = [f"{name}.weight" for name in (self.name, self.alt) if name]
        if not self.optional:
            bound.weight = scope.require(names, self.dims)
        else:
            bound.weight = next((t for t in (scope.find(name, self.dims) for name in names) if t is not None), None)
        return bound

    def __bool__(self) -> bool:
        """Whether the file has this weight."""
        return self.weight is not None

    @property
    def tensor(self) -> Tensor:
        """The bound weight. Raises ModelFormatError where the file does not have it."""
        if self.weight is None:
            raise ModelFormatError(f"weight {self.name!r} is not bound, or the file does not have it")
        return self.weight


M = TypeVar("M", bound="Module")


class Module:
    """A part of a model. Class attributes that are declarations become bound weights and parts of the instance."""

    def __init__(self, scope: Scope) -> None:
        for name, declared in _declarations(type(self)):
            setattr(self, name, declared.bind(scope))


def _declarations(cls: type[Module]) -> Iterator[tuple[str, Weight | Part[Any] | Blocks[Any]]]:
    """Declarations of the class and its bases, in order. A subclass replaces one by its name, or drops it with None."""
    found = {name: value for base in reversed(cls.__mro__) for name, value in vars(base).items()}
    for name, value in found.items():
        if isinstance(value, (Weight, Part, Blocks)):
            yield name, value


class Part(Generic[M]):
    """Declares a module whose weights lie in the same scope, or below `name`.

    `module` is its class, or a function that chooses one by the scope's options.
    """

    def __init__(self, module: Callable[[Scope], M], name: str | None = None) -> None:
        self.module = module
        self.name = name

    def bind(self, scope: Scope) -> M:
        """Make the module and bind its weights. Raises ModelFormatError where a tensor is missing or does not fit."""
        return self.module(scope if self.name is None else scope.below(self.name))

    @overload
    def __get__(self, instance: None, owner: type) -> Part[M]: ...
    @overload
    def __get__(self, instance: object, owner: type) -> M: ...
    def __get__(self, instance: object | None, owner: type) -> Part[M] | M:
        return self  # for typing only: binding sets an instance attribute, which hides this descriptor


class Blocks(Generic[M]):
    """Declares a run of modules, `blk.0.` to `blk.{count - 1}.`; `module` as in Part."""

    def __init__(self, module: Callable[[Scope], M], count: Dim, name: str = "blk") -> None:
        self.module = module
        self.count = count
        self.name = name

    def bind(self, scope: Scope) -> list[M]:
        """Make one module for each block, in order. Raises as `Part.bind`."""
        return [self.module(scope.below(f"{self.name}.{i}")) for i in range(scope.size(self.count))]

    @overload
    def __get__(self, instance: None, owner: type) -> Blocks[M]: ...
    @overload
    def __get__(self, instance: object, owner: type) -> list[M]: ...
    def __get__(self, instance: object | None, owner: type) -> Blocks[M] | list[M]:
        return self
