"""Tiny models that make a vector of an image, or of a text, too: transformers' config, random weights, our converter.

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
from tests.convert.folders import bpe_tokenizer, write_json, write_safetensors
from tests.models import architectures, families
from tests.models.published import Published, read_texts
from tests.models.vision.pictures import Picture, skip_with_another_pillow
from tests.support.tiny import SPECIALS, Weights

FOLDER = Path(__file__).parent / "image_encoder_goldens"
TOLERANCE = 1e-5
"""Largest difference in standard deviations; 8e-7 is found."""
PICTURES = (Picture(60, 40), Picture(13, 77, 2), Picture(30, 30, 3), Picture(5, 400, 4))
TEXT = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 99,
    "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
N_VOCAB, N_CTX = 320, 24
DUAL = {
    **TEXT, "vocab_size": N_VOCAB, "max_position_embeddings": N_CTX, "num_hidden_layers": 3, "intermediate_size": 56,
    "bos_token_id": N_VOCAB - 3, "eos_token_id": N_VOCAB - 1, "pad_token_id": N_VOCAB - 2,
}  # fmt: skip
"""Sizes of a half that reads texts."""
TEXTS = ([5, 80, 13, 7, N_VOCAB - 1], [N_VOCAB - 1], [*range(60, 60 + N_CTX - 1), N_VOCAB - 1])
"""Token ids of texts, the end token last: some, none and as many as there are positions."""
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
    text: Mapping[str, Any] | None = None
    """Sizes of the half that reads texts, beside DUAL; None for a folder without a tokenizer."""

    def __str__(self) -> str:
        return self.name

    @property
    def arguments(self) -> dict[str, Any]:
        """Arguments of the config class in transformers."""
        text = TEXT if self.text is None else {**DUAL, **self.text}
        return {**self.outer, "text_config": text, "vision_config": {**VISION, **self.vision}}

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
        if self.text is not None:
            write_json(path / "tokenizer.json", bpe_tokenizer(N_VOCAB))
            write_json(path / "tokenizer_config.json", {"pad_token": SPECIALS[-2], "eos_token": SPECIALS[-1]})
        return path

    def engine(self, path: str | Path, **options: Any) -> Engine:
        return Engine(path, **{"threads": 1, "gpu_layers": 0, **options})


def cases() -> tuple[Case, ...]:
    """The cases of all architectures."""
    return architectures.all_cases(Case)


@dataclass(frozen=True)
class Golden(Published):
    """Transformers' vectors of PICTURES, and of TEXTS where the case reads texts, float32 [n, dim]."""

    vectors: NDArray[np.float32]
    texts: NDArray[np.float32]


def save(case: Case, golden: Golden) -> Path:
    texts = {"text_vectors": golden.texts} if len(golden.texts) else {}
    return golden.write(FOLDER / f"{case.name}.npz", vectors=golden.vectors, **texts)


def load(case: Case) -> Golden:
    """Skips the test where Pillow resizes otherwise."""
    skip_with_another_pillow()
    return read(case)


def read(case: Case) -> Golden:
    """load() on any machine: for what does not depend on pixels, such as shapes."""
    with np.load(FOLDER / f"{case.name}.npz") as data:
        texts = data["text_vectors"] if "text_vectors" in data else np.empty((0, 0), np.float32)
        return Golden(**read_texts(data), vectors=data["vectors"], texts=texts)


def converted(case: Case, folder: Path) -> Path:
    """The GGUF file of a case, made of its golden's config and shapes; no torch is needed."""
    golden = read(case)
    weights = golden.weights_of(case, "make_image_encoder_goldens")
    target = folder / f"{case.name}.gguf"
    if not target.exists():
        convert_model(case.write(folder / case.name, golden.config, weights), target, "f32")
    return target
