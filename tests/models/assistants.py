"""Tiny assistants, which draft for cases of `families`: a configuration of transformers, random weights, our converter.

`make_assistant_goldens` writes what transformers computes, and `test_assistants` compares with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ollama_engine.convert import convert_model
from tests.models import architectures
from tests.models.draft_cases import GUESSES, DraftCase, DraftGolden
from tests.models.families import SIZES, random_weight, write_folder
from tests.models.published import read_texts
from tests.support.tiny import Weights

__all__ = ["FOLDER", "GUESSES", "Case", "cases", "converted", "load", "save"]

FOLDER = Path(__file__).parent / "assistant_goldens"


@dataclass(frozen=True)
class Case(DraftCase):
    """An assistant; `settings` are in its text config."""

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


def cases() -> tuple[Case, ...]:
    return architectures.all_cases(Case)


def save(case: Case, golden: DraftGolden) -> Path:
    return golden.write(FOLDER / f"{case.name}.npz", **golden.arrays)


def load(case: Case) -> DraftGolden:
    with np.load(FOLDER / f"{case.name}.npz") as data:
        arrays = {"logits": data["logits"], "states": data["states"], "tokens": data["tokens"].tolist()}
        return DraftGolden(**read_texts(data), **arrays)


def converted(case: Case, folder: Path, weights: Weights | None = None, outtype: str = "f32") -> Path:
    """The GGUF file of an assistant, with the weights of its golden or with others; no torch is needed."""
    golden = load(case)
    weights = golden.weights_of(case, "make_assistant_goldens") if weights is None else weights
    source = write_folder(folder / case.name, golden.config, weights, case.dtype)
    convert_model(source, folder / f"{case.name}.gguf", outtype)
    return folder / f"{case.name}.gguf"
