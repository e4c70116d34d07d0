"""Tiny EAGLE-3 heads, which draft for cases of `families`: a config of `speculators`, random weights, our converter.

`make_eagle_goldens` writes what `speculators` computes, and `test_eagle_heads` compares with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ollama_engine.convert import convert_model
from tests.convert.folders import write_json, write_safetensors
from tests.models import architectures
from tests.models.draft_cases import GUESSES, DraftCase, DraftGolden
from tests.models.families import N_VOCAB, SIZES, random_weight
from tests.models.published import read_texts
from tests.support.tiny import Weights

__all__ = ["FOLDER", "GUESSES", "Case", "Golden", "cases", "converted", "load", "published", "save"]

FOLDER = Path(__file__).parent / "eagle_goldens"
N_DRAFT = 200
FLAT = ("architectures", "transformer_layer_config", "speculators_config", "speculators_model_type", "auto_map")
"""Keys of `speculators` that the form of the authors does not have."""


@dataclass(frozen=True)
class Case(DraftCase):
    """A head; `settings` are beside the model's sizes."""

    blocks: Sequence[int] = (1, 2, 3)
    """Which of the model's it reads."""
    n_draft: int = N_DRAFT
    own_embeddings: bool = False
    form: str = "speculators"
    """Or "authors": that in which SafeAILab publishes them."""

    @property
    def block(self) -> dict[str, Any]:
        """Arguments of the block's config class in transformers."""
        sizes = {key: value for key, value in SIZES.items() if value is not None}
        return {**sizes, "num_hidden_layers": 1, "rms_norm_eps": 1e-5, **self.settings}

    def weights(self, shapes: Mapping[str, list[int]]) -> Weights:
        """Random weights by the names of `speculators`, and the tokens of the head."""
        weights: dict[str, NDArray[Any]] = {
            name: random_weight(name, shape, seed=self.seed, norms=1.0, embeddings=0.3)
            for name, shape in shapes.items()
            if name not in ("d2t", "t2d")
        }
        if "d2t" in shapes:
            kept = np.sort(np.random.default_rng(self.seed).permutation(N_VOCAB)[: self.n_draft])
            weights["d2t"] = kept - np.arange(self.n_draft)
            weights["t2d"] = np.isin(np.arange(N_VOCAB), kept)
        return weights


@dataclass(frozen=True)
class Golden(DraftGolden):
    """What `speculators` gives."""

    aux: NDArray[np.float32]
    """The model's states behind its blocks, in the last rows of the prompt, [rows, blocks * n_embd]."""


def cases() -> tuple[Case, ...]:
    return architectures.all_cases(Case)


def save(case: Case, golden: Golden) -> Path:
    return golden.write(FOLDER / f"{case.name}.npz", **golden.arrays, aux=golden.aux)


def load(case: Case) -> Golden:
    with np.load(FOLDER / f"{case.name}.npz") as data:
        arrays = {name: data[name] for name in ("aux", "logits", "states")}
        return Golden(**read_texts(data), tokens=data["tokens"].tolist(), **arrays)


def published(case: Case, config: Mapping[str, Any], weights: Weights, folder: Path) -> Path:
    """The head's folder, without a tokenizer: in the names of `speculators`, or in those of the authors."""
    left_out = () if case.own_embeddings else ("embed_tokens.weight",)
    named = {name: values for name, values in weights.items() if name not in left_out}
    if case.form == "authors":
        named = {name.replace("layers.0.", "midlayer."): values for name, values in named.items()}
        outer = {key: value for key, value in config.items() if key not in FLAT}
        config = {**config["transformer_layer_config"], **outer, "architectures": ["LlamaForCausalLM"]}
    folder.mkdir(parents=True, exist_ok=True)
    write_safetensors(folder / "model.safetensors", named, case.dtype)
    write_json(folder / "config.json", config)
    return folder


def converted(case: Case, folder: Path, target: Path, weights: Weights | None = None, outtype: str = "f32") -> Path:
    """The GGUF file of a head for `target`, with the weights of its golden or with others."""
    golden = load(case)
    weights = golden.weights_of(case, "make_eagle_goldens") if weights is None else weights
    source = published(case, golden.config, weights, folder / case.name)
    convert_model(source, folder / f"{case.name}.gguf", outtype, target_model=target)
    return folder / f"{case.name}.gguf"
