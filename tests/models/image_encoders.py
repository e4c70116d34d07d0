"""Tiny models that make a vector of an image: a configuration of transformers, random weights, our converter.

The cases themselves are in `architectures`. `python -m tests.models.make_image_encoder_goldens` writes their goldens,
with torch and transformers installed; `test_image_encoders` compares with these, and with transformers itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ollama_engine import Engine
from ollama_engine.convert import convert_model
from tests.convert.folders import write_json, write_safetensors
from tests.models import architectures, families
from tests.models.published import Published, read_texts
from tests.models.vision.pictures import Picture
from tests.support.tiny import Weights

FOLDER = Path(__file__).parent / "image_encoder_goldens"
TOLERANCE = 1e-5
"""Largest difference in standard deviations; 8e-7 is found."""
PICTURES = (Picture(60, 40), Picture(13, 77, 2), Picture(30, 30, 3), Picture(5, 400, 4))
TEXT = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 99,
    "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
SIDE = 30
"""With patches of 7 pixels, two are left at the edges."""
VISION = {
    "hidden_size": 48, "intermediate_size": 72, "num_hidden_layers": 3, "num_attention_heads": 4, "image_size": SIDE,
    "patch_size": 7,
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """`model` is its class in transformers, `processor` what its preprocessor_config.json says."""

    name: str
    model: str
    processor: Mapping[str, Any]
    vision: Mapping[str, Any] = field(default_factory=dict)
    outer: Mapping[str, Any] = field(default_factory=dict)
    dtype: str = "F32"

    def __str__(self) -> str:
        return self.name

    @property
    def arguments(self) -> dict[str, Any]:
        """Arguments of the config class in transformers."""
        return {**self.outer, "text_config": TEXT, "vision_config": {**VISION, **self.vision}}

    def weights(self, shapes: Mapping[str, list[int]]) -> Weights:
        """Scalars, by which similarities of both halves are scaled, are 1."""
        arrays = {name: shape for name, shape in shapes.items() if shape}
        made = families.Family(self.name, self.model).weights(arrays)
        return {name: made.get(name, np.ones((), np.float32)) for name in shapes}

    def write(self, path: Path, config: Mapping[str, Any], weights: Weights) -> Path:
        """The folder as it is published."""
        path.mkdir(parents=True, exist_ok=True)
        write_safetensors(path / "model.safetensors", weights, self.dtype)
        write_json(path / "config.json", config)
        write_json(path / "preprocessor_config.json", self.processor)
        return path

    def engine(self, path: str | Path, **options: Any) -> Engine:
        return Engine(path, **{"threads": 1, "gpu_layers": 0, **options})


def cases() -> tuple[Case, ...]:
    """The cases of all architectures."""
    return architectures.all_cases(Case)


@dataclass(frozen=True)
class Golden(Published):
    """Transformers' vectors of PICTURES, float32 [n, dim]."""

    vectors: NDArray[np.float32]


def save(case: Case, golden: Golden) -> Path:
    return golden.write(FOLDER / f"{case.name}.npz", vectors=golden.vectors)


def load(case: Case) -> Golden:
    with np.load(FOLDER / f"{case.name}.npz") as data:
        return Golden(**read_texts(data), vectors=data["vectors"])


def converted(case: Case, folder: Path) -> Path:
    """The GGUF file of a case, made of its golden's config and shapes; no torch is needed."""
    golden = load(case)
    weights = golden.weights_of(case, "make_image_encoder_goldens")
    target = folder / f"{case.name}.gguf"
    if not target.exists():
        convert_model(case.write(folder / case.name, golden.config, weights), target, "f32")
    return target
