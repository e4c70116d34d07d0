"""Tiny assistants, which draft for cases of `families`: a configuration of transformers, random weights, our converter.

`make_assistant_goldens` writes what transformers computes, and `test_assistants` compares with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ollama_engine.convert import convert_model
from tests.models import architectures, families
from tests.models.families import SIZES, random_weight, write_folder
from tests.models.published import Published, read_texts
from tests.support.tiny import Weights

__all__ = ["FOLDER", "GUESSES", "Case", "Golden", "cases", "converted", "load", "save"]

FOLDER = Path(__file__).parent / "assistant_goldens"
GUESSES = 5


@dataclass(frozen=True)
class Case:
    """An assistant of the family's case `model`; `settings` are what its text config has beside the model's."""

    name: str
    model: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    outer: Mapping[str, Any] = field(default_factory=dict)
    """Its config beside the text config."""
    dtype: str = "F32"
    seed: int = 1

    def __str__(self) -> str:
        return self.name

    @property
    def family(self) -> families.Family:
        """The model that it drafts for."""
        return families.case(self.model)

    @property
    def class_name(self) -> str:
        """Its class in transformers."""
        return f"{self.family.stem}AssistantForCausalLM"

    @property
    def arguments(self) -> dict[str, Any]:
        """Arguments of the config class in transformers."""
        text = {**self.family.arguments, "num_kv_shared_layers": 0, "hidden_size_per_layer_input": 0,
                "vocab_size_per_layer_input": 0, "use_double_wide_mlp": False, **self.settings}  # fmt: skip
        return {"text_config": text, "backbone_hidden_size": SIZES["hidden_size"], **self.outer}

    def weights(self, shapes: Mapping[str, list[int]]) -> Weights:
        """Random weights by name, without the order of tokens, which is no weight."""
        return {
            name: random_weight(name, shape, seed=self.seed, norms=1.0, embeddings=0.3)
            * np.float32(0.2 if name.endswith("q_norm.weight") else 1)
            for name, shape in shapes.items()
            if not name.endswith("token_ordering")
        }


@dataclass(frozen=True)
class Golden(Published):
    """What transformers' assistant gives behind a prompt of the family, each guess behind the one before."""

    tokens: list[int]
    """The token that the model draws, and the guesses, of all but the last of which there are states."""
    logits: NDArray[np.float32]
    """[GUESSES, n_vocab]."""
    states: NDArray[np.float32]
    """What it gives for the next guess, [GUESSES, the model's n_embd]."""


def cases() -> tuple[Case, ...]:
    return architectures.all_cases(Case)


def save(case: Case, golden: Golden) -> Path:
    return golden.write(
        FOLDER / f"{case.name}.npz", tokens=np.array(golden.tokens, np.int16), logits=golden.logits,
        states=golden.states,
    )  # fmt: skip


def load(case: Case) -> Golden:
    with np.load(FOLDER / f"{case.name}.npz") as data:
        arrays = {"logits": data["logits"], "states": data["states"], "tokens": data["tokens"].tolist()}
        return Golden(**read_texts(data), **arrays)


def converted(case: Case, folder: Path, weights: Weights | None = None, outtype: str = "f32") -> Path:
    """The GGUF file of an assistant, with the weights of its golden or with others; no torch is needed."""
    golden = load(case)
    weights = golden.weights_of(case, "make_assistant_goldens") if weights is None else weights
    source = write_folder(folder / case.name, golden.config, weights, case.dtype)
    convert_model(source, folder / f"{case.name}.gguf", outtype)
    return folder / f"{case.name}.gguf"
