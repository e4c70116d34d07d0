"""Tiny models that are compared with Hugging Face transformers, live (test_reference) and by goldens (test_goldens).

A case is data: what to write into the GGUF file, what the same model is called there, and how far apart they may be.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ollama_engine import Engine, SamplingParams
from tests.support.tiny import TinyModel, write_tiny_llama

N_CTX = 256
GREEDY_STEPS = 64
EXACT = 5e-5
"""Differences are measured in standard deviations of the logits. This is for float32 files and a float32 cache on the
CPU, where 6e-6 is found at most: two ways to add up the same numbers."""
LEAD = 1e-3
"""By how much the first token must lead before the second in every greedy step, for the tokens to be comparable."""


@dataclass(frozen=True)
class Case:
    """`model`: fields of TinyLlama. `rope`: rope_parameters of the transformers config, without rope_theta."""

    name: str
    model: Mapping[str, Any]
    family: Literal["llama", "mistral", "mixtral"] = "llama"
    rope: Mapping[str, Any] = field(default_factory=lambda: {"rope_type": "default"})
    prompt_length: int = 70
    batch_size: int = 512
    tolerance: float = EXACT

    @property
    def greedy(self) -> bool:
        """Whether the two are close enough to take the same token 64 times."""
        return self.tolerance == EXACT

    @property
    def prompt(self) -> list[int]:
        """Any tokens but the three special ones at the end of the vocabulary."""
        n_vocab = self.model.get("n_vocab", 320)
        rng = np.random.default_rng(len(self.name))
        return [int(t) for t in rng.integers(0, n_vocab - 3, size=self.prompt_length)]

    @property
    def banned(self) -> dict[int, float]:
        """A bias that keeps a generation from ending early: EOS and EOT of the tiny vocabulary."""
        n_vocab = self.model.get("n_vocab", 320)
        return {n_vocab - 2: -np.inf, n_vocab - 1: -np.inf}

    def write(self, folder: Path) -> TinyModel:
        return write_tiny_llama(folder / f"{self.name}.gguf", **{"n_ctx": N_CTX, **self.model})

    def engine(self, path: str, **options: Any) -> Engine:
        defaults = {"num_ctx": N_CTX, "parallel": 1, "batch_size": self.batch_size, "threads": 1, "gpu_layers": 0,
                    "kv_cache_type": "f32"}  # fmt: skip
        return Engine(path, **{**defaults, **options})

    def greedy_tokens(self, engine: Engine) -> list[int]:
        params = SamplingParams(temperature=0, max_tokens=GREEDY_STEPS, logit_bias=self.banned)
        return list(engine.generate(self.prompt, params).tokens)


def difference(a: NDArray[np.float32], b: NDArray[np.float32]) -> float:
    """Largest difference of two arrays of logits, in standard deviations of the second."""
    return float(np.abs(a.astype(np.float64) - b).max() / b.std())


_LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
           "original_max_position_embeddings": N_CTX // 8}  # fmt: skip
_YARN = {"type": "yarn", "factor": 4.0, "original_context_length": N_CTX // 4}
_WINDOW = {"sliding_window": 24, "n_head_kv": 2, "n_layer": 3}

CASES = (
    Case("mha", {"n_head_kv": 4, "seed": 1}),
    Case("gqa", {"n_head": 8, "n_head_kv": 2, "n_layer": 3, "seed": 2}),
    Case("mqa", {"n_head_kv": 1, "seed": 3}),
    Case("tied", {"tied": True, "seed": 4}),
    Case("biases", {"biases": True, "seed": 5}),
    Case("llama3-factors", {"rope_base": 500000.0, "rope_freqs": True, "seed": 6}, rope=_LLAMA3),
    Case("llama3-factors-wide-heads", {"rope_base": 500000.0, "rope_freqs": True, "head_dim": 32, "seed": 107},
         rope=_LLAMA3),
    Case("linear-scaling", {"rope_scaling": {"type": "linear", "factor": 4.0}, "seed": 8},
         rope={"rope_type": "linear", "factor": 4.0}, prompt_length=150),
    Case("yarn", {"rope_scaling": _YARN, "seed": 9}, prompt_length=150,
         rope={"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": N_CTX // 4}),
    Case("mistral-wide-heads", {"head_dim": 32, "rope_base": 1e6, "seed": 110}, family="mistral"),
    Case("mistral-narrow-heads", {"head_dim": 8, "seed": 111}, family="mistral"),
    Case("mistral-window", {**_WINDOW, "seed": 12}, family="mistral"),
    Case("mistral-window-small-batches", {**_WINDOW, "seed": 12}, family="mistral", batch_size=7),
    Case("mixtral-2-of-4", {"n_expert": 4, "n_expert_used": 2, "seed": 313}, family="mixtral"),
    Case("mixtral-3-of-8", {"n_expert": 8, "n_expert_used": 3, "seed": 14}, family="mixtral"),
    Case("mixtral-1-of-2", {"n_expert": 2, "n_expert_used": 1, "seed": 15}, family="mixtral"),
    # ggml rounds the activations to the precision of the weights (q8_0: to 8 bits in blocks of 32).
    Case("f16", {"dtype": "f16", "seed": 16}, tolerance=1e-2),
    Case("bf16", {"dtype": "bf16", "seed": 17}, tolerance=5e-2),
    Case("q8_0", {"dtype": "q8_0", "seed": 18}, tolerance=1e-1),
    Case("mixtral-q8_0", {"dtype": "q8_0", "n_expert": 4, "seed": 19}, family="mixtral", tolerance=1e-1),
)  # fmt: skip
