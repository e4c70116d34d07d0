"""Tiny models that write: a configuration of transformers, random weights, our converter.

The cases themselves are in `architectures`. Three tests share them: `test_families` compares with goldens that
transformers made, `test_family_reference` with transformers itself, and `variants` lends files to the contract tests.
"""

from __future__ import annotations

import copy
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ollama_engine import Engine, SamplingParams
from ollama_engine.convert import convert_model
from tests.convert.folders import bpe_tokenizer, write_json, write_safetensors
from tests.models import architectures
from tests.models.cases import EXACT, GREEDY_STEPS, N_CTX
from tests.models.published import Published, read_texts
from tests.support.tiny import SPECIALS, Weights

N_VOCAB = 320
PROMPT_LENGTH = 70
BANNED = dict.fromkeys(range(N_VOCAB - len(SPECIALS), N_VOCAB), -np.inf)
SIZES = {
    "vocab_size": N_VOCAB, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "max_position_embeddings": N_CTX,
    "pad_token_id": None, "bos_token_id": 317, "eos_token_id": 318,
}  # fmt: skip

NULLABLE = ("pad_token_id", "sliding_window")
"""Settings of which None is a value; other settings of None are left out, so that the class decides."""

ROUTERS = ("mlp.gate.weight", "router.weight", "mixer.gate.weight", "router.proj.weight")
NORMS = ("norm.weight", "norm_f.weight", "norm_1.weight", "norm_2.weight", "layer_scalar", ".scale", "expert_scale")
"""Vectors that are factors."""


# Settings that several architectures share.
SHORT_PERIOD = {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 32, "tie_word_embeddings": True}
LLAMA3 = {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
          "high_freq_factor": 4.0, "original_max_position_embeddings": 32}  # fmt: skip
YARN = {
    "rope_type": "yarn", "rope_theta": 500000.0, "factor": 8.0, "original_max_position_embeddings": 32,
    "beta_fast": 32.0, "beta_slow": 1.0,
}  # fmt: skip
VISION = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48,
        "image_size": 56, "patch_size": 14}  # fmt: skip


@dataclass(frozen=True)
class Family:
    """`stem` of the class names, as in Qwen2ForCausalLM; `settings` are what its config has beside SIZES."""

    name: str
    stem: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    norms: float = 1.0
    """The number that norms are near: 0 where they are published as differences from 1."""
    embeddings: float = 0.3
    """How large these are. Small beside what the blocks add, or tied models repeat the last token."""
    queries: float = 1.0
    """What norms of queries are multiplied by: less than 1 where scores are not scaled, or random ones are sharper than
    those of any trained model.
    """
    dtype: str = "F32"
    """The type of the weights as they are published; both sides compute with them in float32."""
    tolerance: float = EXACT
    seed: int = 1
    vision: Mapping[str, Any] | None = None
    """The config of the part that reads images, for a model with one; `settings` are of its text part."""
    outer: Mapping[str, Any] = field(default_factory=dict)
    """The rest of such a config, beside the two."""
    shapes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """Shapes by the ends of names, of tensors that are published otherwise than transformers saves them."""
    contract: bool = False
    """Whether the contract tests run on it. The first such case of an architecture has nothing optional."""

    def __str__(self) -> str:
        return self.name

    @property
    def class_name(self) -> str:
        """The model's class in transformers."""
        return self.stem + ("ForCausalLM" if self.vision is None else "ForConditionalGeneration")

    @property
    def arguments(self) -> dict[str, Any]:
        """Arguments of the config class in transformers."""
        chosen = copy.deepcopy({**SIZES, **self.settings})  # config classes add to the dicts that they are given
        text = {k: v for k, v in chosen.items() if v is not None or k in NULLABLE}
        return text if self.vision is None else {**self.outer, "text_config": text, "vision_config": dict(self.vision)}

    @property
    def prompt(self) -> list[int]:
        """Ordinary tokens."""
        rng = np.random.default_rng(len(self.name))
        return [int(t) for t in rng.integers(0, N_VOCAB - len(SPECIALS), PROMPT_LENGTH)]

    def weights(self, shapes: Mapping[str, list[int]]) -> Weights:
        """Random weights by name, each from a generator of its own, so that none depends on the others."""
        return {
            name: random_weight(name, shape, seed=self.seed, norms=self.norms, embeddings=self.embeddings)
            * np.float32(self.queries if name.endswith("q_norm.weight") else 1)
            for name, shape in shapes.items()
        }

    def engine(self, path: str | Path, **options: Any) -> Engine:
        defaults = {"num_ctx": N_CTX, "parallel": 1, "threads": 1, "gpu_layers": 0, "kv_cache_type": "f32"}
        return Engine(path, **{**defaults, **options})


def cases() -> tuple[Family, ...]:
    """The cases of all decoders."""
    return architectures.all_cases(Family)


def running() -> tuple[Family, ...]:
    """Those of architectures that have a model."""
    return architectures.all_cases(Family, that_run=True)


def case(name: str) -> Family:
    return next(c for c in cases() if c.name == name)


def greedy_tokens(engine: Engine, prompt: list[int]) -> list[int]:
    params = SamplingParams(temperature=0, max_tokens=GREEDY_STEPS, logit_bias=BANNED)
    return list(engine.generate(prompt, params).tokens)


def random_weight(
    name: str, shape: Sequence[int], *, seed: int, norms: float, embeddings: float
) -> NDArray[np.float32]:
    """Matrices keep activations near 1; routers choose sharply; norms are near 1, so that a forgotten one shows."""
    values = np.random.default_rng([seed, zlib.crc32(name.encode())]).standard_normal(shape)
    if "embed" in name:
        scale, shift = embeddings, 0.0
    elif len(shape) <= 1:
        scale, shift = 0.2, norms if name.endswith(NORMS) else 0.0
    else:
        scale, shift = (4.0 if name.endswith(ROUTERS) else 1.0) / np.sqrt(shape[-1]), 0.0
    return np.asarray(scale * values + shift, np.float32)


def write_folder(path: Path, config: Mapping[str, Any], weights: Weights, dtype: str) -> Path:
    """A model as it is published, with a vocabulary that can spell every text."""
    path.mkdir(parents=True, exist_ok=True)
    write_safetensors(path / "model.safetensors", weights, dtype)
    write_json(path / "config.json", config)
    write_json(path / "tokenizer.json", bpe_tokenizer(N_VOCAB))
    return path


# -- goldens -----------------------------------------------------------------------------------------------------------

FOLDER = Path(__file__).parent / "family_goldens"


@dataclass(frozen=True)
class Golden(Published):
    """Results of a case in transformers."""

    rows: NDArray[np.int64]
    logits: NDArray[np.float32]
    """Logits of `rows` of the prompt, [len(rows), n_vocab]."""
    tokens: list[int]
    """The greedy ones after the prompt."""


def save(case: Family, golden: Golden) -> Path:
    return golden.write(
        FOLDER / f"{case.name}.npz", rows=golden.rows, logits=golden.logits, tokens=np.array(golden.tokens, np.int16)
    )


def load(case: Family) -> Golden:
    with np.load(FOLDER / f"{case.name}.npz") as data:
        tokens = data["tokens"].tolist()
        return Golden(**read_texts(data), rows=data["rows"], logits=data["logits"], tokens=tokens)


def converted(case: Family, folder: Path, outtype: str = "f32", *, vision: bool = True) -> Path:
    """The GGUF file of a case, made of its golden's config and shapes; no torch is needed."""
    golden = load(case)
    weights = golden.weights_of(case, "make_family_goldens")
    target = folder / f"{case.name}-{outtype}{'' if vision else '-text'}.gguf"
    if not target.exists():
        source = write_folder(folder / case.name, golden.config, weights, case.dtype)
        convert_model(source, target, outtype, vision=vision)
    return target
