"""Qwen2, Qwen2.5, Qwen3, and its rerankers -> `general.architecture` = qwen2, qwen3, qwen2moe, qwen3moe."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ollama_engine.convert.architecture import Architecture, Sizes, TensorMap, linear
from ollama_engine.convert.bidirectional import RANK, labels
from ollama_engine.convert.decoder import (
    ATTENTION,
    ATTN_NORM,
    BLOCK,
    FFN_NORM,
    LAYER,
    MLP,
    QK_NORM,
    decoder,
    experts,
    layer_types,
    rope_and_size,
    sizes,
)
from ollama_engine.convert.source.folder import Config, ModelFolder
from ollama_engine.convert.transforms import Transform
from ollama_engine.errors import ModelFormatError, UnsupportedModelError

__all__ = ["ARCHITECTURES", "QWEN2", "QWEN3", "QWEN3MOE", "named", "reranker"]


def _more_keys(config: Config, sizes: Sizes) -> Mapping[str, Any]:
    if config.get("use_sliding_window") and any(layer_types(config, lambda i: i >= config.whole("max_window_layers"))):
        raise UnsupportedModelError(f"{config.home}: use_sliding_window is on, which GGUF has no key for in qwen")
    return rope_and_size(config, sizes)


def _expert_keys(config: Config, sizes: Sizes) -> Mapping[str, Any]:
    if config.get("mlp_only_layers") or config.whole("decoder_sparse_step", default=1) != 1:
        raise UnsupportedModelError(f"{config.home}: mlp_only_layers or decoder_sparse_step make some layers dense")
    shared = config.whole("shared_expert_intermediate_size", default=0)
    return {
        **_more_keys(config, sizes),
        "expert_feed_forward_length": sizes["n_ff_exp"],
        # Read by Ollama, and by us. llama.cpp has one answer for each architecture: those of the published models.
        "norm_top_k_prob": bool(config.get("norm_topk_prob", default=False)),
        **({"expert_shared_feed_forward_length": shared} if shared else {}),
    }


def _expert_sizes(config: Config) -> dict[str, int]:
    return sizes(config) | {"n_ff_shexp": config.whole("shared_expert_intermediate_size", default=0)}


SHARED = (
    TensorMap(BLOCK + "ffn_gate_inp_shexp.weight", LAYER + "mlp.shared_expert_gate.weight", (1, "n_embd")),
    *linear(BLOCK + "ffn_gate_shexp", LAYER + "mlp.shared_expert.gate_proj", "n_ff_shexp", "n_embd"),
    *linear(BLOCK + "ffn_up_shexp", LAYER + "mlp.shared_expert.up_proj", "n_ff_shexp", "n_embd"),
    *linear(BLOCK + "ffn_down_shexp", LAYER + "mlp.shared_expert.down_proj", "n_embd", "n_ff_shexp"),
)

QWEN2_ATTENTION = (ATTN_NORM, *ATTENTION, FFN_NORM)
QWEN3_ATTENTION = (ATTN_NORM, *ATTENTION, *QK_NORM, FFN_NORM)


def _qwen(name: str, class_name: str, *block: TensorMap) -> Architecture:
    return decoder(name, (class_name,), block, more_keys=_more_keys, pre_names=("qwen2",))


def _qwen_moe(name: str, class_name: str, *block: TensorMap) -> Architecture:
    return replace(_qwen(name, class_name, *block), sizes=_expert_sizes, more_keys=_expert_keys)


# -- Qwen3-Reranker ----------------------------------------------------------------------------------------------------

ANSWERS = ("yes", "no")
TEMPLATE = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
    'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n'
    "<|im_start|>user\n<Instruct>: Given a web search query, retrieve relevant passages that answer the query\n"
    "<Query>: {query}\n<Document>: {document}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
)
"""The prompt of its model card."""


def named(title: str) -> Callable[[Config], bool]:
    """Whether a folder is of a model, by its name or the title of its README.md, as in llama.cpp: nothing in
    config.json tells such models from those that write.
    """

    def fits(config: Config) -> bool:
        folder = Path(config.home).parent
        readme = folder / "README.md"
        text = readme.read_text(encoding="utf-8", errors="replace") if readme.is_file() else ""
        names = (folder.resolve().name, str(config.get("_name_or_path", default="")))
        return f"# {title}" in text.lower() or any(title in name.lower() for name in names)

    return fits


def _answer_ids(folder: ModelFolder) -> Mapping[str, Any]:
    vocab = ((folder.json("tokenizer.json") or {}).get("model") or {}).get("vocab")
    if vocab is None:
        vocab = folder.json("vocab.json") or {}
    missing = [answer for answer in ANSWERS if answer not in vocab]
    if missing:
        raise ModelFormatError(f"{folder.path}: the vocabulary of a reranker has no token {missing[0]!r}")
    return {f"{answer}_token_id": vocab[answer] for answer in ANSWERS}


def _scorer_keys(config: Config, sizes: Sizes) -> Mapping[str, Any]:
    return {**_more_keys(config, sizes), "pooling_type": RANK, "classifier.output_labels": labels(config)}


ANSWER_ROWS = Transform(
    lambda values, sizes: values[[sizes[f"{answer}_row"] for answer in ANSWERS]],
    lambda old, sizes: (len(ANSWERS), *old[1:]),
    entrywise=False,
)
"""The rows of both answers, of all tokens' rows."""

QWEN3 = _qwen("qwen3", "Qwen3ForCausalLM", *QWEN3_ATTENTION, *MLP)


def reranker(text: Architecture, title: str, template: str) -> Architecture:
    """A model that writes, asked for "yes" or "no" in a template: it keeps the output's rows of both."""
    return replace(
        text,
        fits=named(title),
        told_by_folder=_answer_ids,
        sizes=lambda config: {
            **text.sizes(config), **{f"{answer}_row": config.whole(f"{answer}_token_id") for answer in ANSWERS}
        },
        more_keys=lambda config, sizes: {
            **text.more_keys(config, sizes), "pooling_type": RANK, "classifier.output_labels": list(ANSWERS)
        },
        tensors=(
            *text.tensors,
            *(
                TensorMap("cls.output.weight", source, ("n_vocab", "n_embd"), ANSWER_ROWS)
                for source in ("lm_head.weight", "model.embed_tokens.weight")
            ),
        ),
        chat_templates={"rerank": template},
    )  # fmt: skip


RERANKERS = (
    reranker(QWEN3, "qwen3-reranker", TEMPLATE),
    replace(
        QWEN3,
        classes=("Qwen3ForSequenceClassification",),
        sizes=lambda config: sizes(config) | {"n_scores": len(labels(config))},
        more_keys=_scorer_keys,
        tensors=(*QWEN3.tensors, TensorMap("cls.output.weight", "score.weight", ("n_scores", "n_embd"))),
        chat_templates={"rerank": TEMPLATE},
    ),
)

QWEN2 = _qwen("qwen2", "Qwen2ForCausalLM", *QWEN2_ATTENTION, *MLP)
QWEN3MOE = _qwen_moe("qwen3moe", "Qwen3MoeForCausalLM", *QWEN3_ATTENTION, *experts())
ARCHITECTURES = (
    QWEN2,
    replace(QWEN3, classes=("Qwen3ForCausalLM", "Qwen3Model")),
    *RERANKERS,
    _qwen_moe("qwen2moe", "Qwen2MoeForCausalLM", *QWEN2_ATTENTION, *experts(), *SHARED),
    QWEN3MOE,
)
