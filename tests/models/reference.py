"""The same model in Hugging Face transformers: from the weights of a tiny GGUF to float32 logits. Needs torch."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.models.cases import GREEDY_STEPS, Case
from tests.support import suite
from tests.support.tiny import TinyLlama, TinyModel, Weights


class Reference:
    """One model of transformers, eager attention, float32, without a cache."""

    def __init__(self, case: Case, model: TinyModel) -> None:
        with quiet():
            self._model = _empty_model(case, model.config)
            _load(self._model, model)
        self._case = case

    def logits(self, ids: Sequence[int]) -> NDArray[np.float32]:
        """[len(ids), n_vocab]."""
        import torch  # noqa: PLC0415 (the goldens are checked without torch)

        with torch.inference_mode(), quiet():
            out = self._model(torch.tensor([list(ids)]), use_cache=False).logits[0]
        return np.asarray(out.numpy(), dtype=np.float32)

    def best_after(self, ids: Sequence[int]) -> tuple[list[int], NDArray[np.float64]]:
        """The best token after each of `ids`, banned ones left out, and its lead before the second.

        The lead is in standard deviations of the row.
        """
        rows = self.logits(ids)
        deviations = rows.std(axis=1)
        rows[:, list(self._case.banned)] = -np.inf
        second, best = np.sort(rows, axis=1)[:, -2:].T
        return rows.argmax(axis=1).tolist(), (best - second) / deviations

    def greedy(self) -> list[int]:
        """The tokens after the case's prompt."""
        ids = list(self._case.prompt)
        for _ in range(GREEDY_STEPS):
            ids.append(self.best_after(ids)[0][-1])
        return ids[len(self._case.prompt) :]


def import_reference() -> tuple[Any, Any]:
    """torch and transformers. Skips the module that asks where they are not installed, and in the quick suite."""
    if not suite.exhaustive:
        pytest.skip("compares with torch and transformers: pytest --exhaustive", allow_module_level=True)
    missing = "{} is not installed: pip install ollama_engine[reference]"
    with quiet():
        torch = pytest.importorskip("torch", reason=missing.format("torch"))
        return torch, pytest.importorskip("transformers", reason=missing.format("transformers"))


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Warnings of torch and transformers about themselves are not ours to fail on."""
    with warnings.catch_warnings():
        for module in ("torch", "transformers", "huggingface_hub", "numpy"):
            warnings.filterwarnings("ignore", module=rf"{module}(\.|$)")
        yield


def _empty_model(case: Case, config: TinyLlama) -> Any:
    import transformers as hf  # noqa: PLC0415

    kinds: dict[str, tuple[Any, Any, dict[str, Any]]] = {
        "llama": (hf.LlamaConfig, hf.LlamaForCausalLM, {"attention_bias": config.biases}),
        "mistral": (hf.MistralConfig, hf.MistralForCausalLM, {"sliding_window": config.sliding_window}),
        "mixtral": (
            hf.MixtralConfig,
            hf.MixtralForCausalLM,
            {"num_local_experts": config.n_expert, "num_experts_per_tok": config.n_expert_used},
        ),
    }
    config_class, model_class, extra = kinds[case.family]
    settings = config_class(
        vocab_size=config.n_vocab,
        hidden_size=config.n_embd,
        intermediate_size=config.n_ff,
        num_hidden_layers=config.n_layer,
        num_attention_heads=config.n_head,
        num_key_value_heads=config.n_head_kv,
        head_dim=config.d,
        max_position_embeddings=config.n_ctx,
        rms_norm_eps=config.norm_eps,
        tie_word_embeddings=config.tied,
        rope_parameters={"rope_theta": config.rope_base, **case.rope},
        attn_implementation="eager",
        pad_token_id=None,
        bos_token_id=None,
        eos_token_id=None,
        **extra,
    )
    return model_class(settings).eval()


def _load(model: Any, source: TinyModel) -> None:
    import torch  # noqa: PLC0415

    state = {name: torch.from_numpy(np.ascontiguousarray(w)) for name, w in huggingface_weights(source).items()}
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected, unexpected
    assert set(missing) <= ({"lm_head.weight"} if source.config.tied else set()), missing


def huggingface_weights(source: TinyModel) -> Weights:
    """Weights by the names of transformers. rope_freqs is left out: transformers computes the factors itself."""
    w, config = source.weights, source.config
    state = {"model.embed_tokens.weight": w["token_embd.weight"], "model.norm.weight": w["output_norm.weight"]}
    if not config.tied:
        state["lm_head.weight"] = w["output.weight"]
    for i in range(config.n_layer):
        block = {name.removeprefix(f"blk.{i}."): v for name, v in w.items() if name.startswith(f"blk.{i}.")}
        layer = {**_attention(block, config), **(_experts(block) if config.n_expert else _feed_forward(block))}
        state |= {f"model.layers.{i}.{name}": v for name, v in layer.items()}
    return state


def _attention(block: Weights, config: TinyLlama) -> Weights:
    layer = {
        "input_layernorm.weight": block["attn_norm.weight"],
        "post_attention_layernorm.weight": block["ffn_norm.weight"],
    }
    parts = {"attn_q": ("q", config.n_head), "attn_k": ("k", config.n_head_kv), "attn_v": ("v", 0),
             "attn_output": ("o", 0)}  # fmt: skip
    for name, (letter, heads) in parts.items():
        for kind in ("weight", "bias"):
            found = block.get(f"{name}.{kind}")
            if found is not None:
                layer[f"self_attn.{letter}_proj.{kind}"] = _to_halves(found, heads) if heads else found
    return layer


def _to_halves(rows: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """Rows of a projection whose rotary pairs are neighbours (GGUF) -> pairs half a head apart (transformers)."""
    split = rows.reshape(heads, rows.shape[0] // heads // 2, 2, *rows.shape[1:])
    return split.swapaxes(1, 2).reshape(rows.shape)


def _feed_forward(block: Weights) -> Weights:
    return {f"mlp.{part}_proj.weight": block[f"ffn_{part}.weight"] for part in ("gate", "up", "down")}


def _experts(block: Weights) -> Weights:
    return {
        "mlp.gate.weight": block["ffn_gate_inp.weight"],
        "mlp.experts.gate_up_proj": np.concatenate([block["ffn_gate_exps.weight"], block["ffn_up_exps.weight"]], 1),
        "mlp.experts.down_proj": block["ffn_down_exps.weight"],
    }
