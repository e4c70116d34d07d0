"""transformers -> save_pretrained -> our converter -> our engine: logits and greedy tokens as in transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ollama_engine import Engine, SamplingParams
from ollama_engine.convert import convert_model
from tests.convert.folders import bpe_tokenizer, write_json
from tests.convert.live_cases import LIVE_CASES, N_CTX, SIZES, LiveCase
from tests.models.cases import GREEDY_STEPS, difference
from tests.models.reference import import_reference, quiet
from tests.tiny import SPECIALS

torch, hf = import_reference()

pytestmark = pytest.mark.reference

PROMPT_LENGTH = 70
BANNED = dict.fromkeys(range(SIZES["vocab_size"] - len(SPECIALS), SIZES["vocab_size"]), -np.inf)


def saved_model(case: LiveCase, folder: Path) -> Any:
    """Save a random model in `dtype` and load it in float32. Norms are away from 1, so that a forgotten one shows."""
    torch.manual_seed(case.seed)
    model_class = getattr(hf, f"{case.family}ForCausalLM")
    with quiet():
        model = model_class(getattr(hf, f"{case.family}Config")(**{**SIZES, **case.settings}))
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.ndim == 1:
                weight.add_(0.1 * torch.randn_like(weight))
            elif "embed" in name:
                weight.mul_(4)
    with quiet():
        model.to(getattr(torch, case.dtype)).save_pretrained(folder)
        return model_class.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()


@pytest.mark.parametrize("case", LIVE_CASES, ids=str)
def test_logits_and_greedy_tokens_are_those_of_transformers(case: LiveCase, tmp_path: Path) -> None:
    folder = tmp_path / "source"
    model = saved_model(case, folder)
    write_json(folder / "tokenizer.json", bpe_tokenizer(SIZES["vocab_size"]))
    convert_model(folder, tmp_path / "made.gguf", "f32")
    rng = np.random.default_rng(case.seed)
    prompt = [int(t) for t in rng.integers(0, SIZES["vocab_size"] - len(SPECIALS), PROMPT_LENGTH)]
    options = {"num_ctx": N_CTX, "parallel": 1, "threads": 1, "gpu_layers": 0, "kv_cache_type": "f32"}
    with Engine(tmp_path / "made.gguf", **options) as engine:
        assert difference(engine.logits(prompt), logits(model, prompt)) <= case.tolerance
        params = SamplingParams(temperature=0, max_tokens=GREEDY_STEPS, logit_bias=BANNED)
        tokens = list(engine.generate(prompt, params).tokens)
        assert tokens == best_tokens(model, prompt + tokens)[PROMPT_LENGTH - 1 : -1]
        assert len(tokens) == GREEDY_STEPS


def logits(model: Any, ids: list[int]) -> np.ndarray[Any, np.dtype[np.float32]]:
    with torch.inference_mode(), quiet():
        return np.asarray(model(torch.tensor([ids]), use_cache=False).logits[0].float().numpy())


def best_tokens(model: Any, ids: list[int]) -> list[int]:
    rows = logits(model, ids)
    rows[:, list(BANNED)] = -np.inf
    return [int(token) for token in rows.argmax(axis=1)]
