"""Jina Embeddings 3 -> `general.architecture` = jina-bert-v3.

Published folders have an adapter for each task beside each matrix, stacked: they become two matrices, in which the
adapters of all tasks lie side by side. llama.cpp's converter writes a file for each adapter instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ollama_engine.convert.architecture import Sizes, TensorMap
from ollama_engine.convert.bert import PLAIN_MLP, POOLER, RENAMES, ROTATED, roberta_sizes
from ollama_engine.convert.bidirectional import bidirectional_keys, encoder
from ollama_engine.convert.rope import rope_keys
from ollama_engine.convert.source.folder import Config
from ollama_engine.convert.transforms import Transform
from ollama_engine.errors import ModelFormatError, UnsupportedModelError

__all__ = ["ARCHITECTURES"]


def _keys(config: Config, sizes: Sizes) -> Mapping[str, Any]:
    if config.get("hidden_act", default="gelu") != "gelu":
        raise UnsupportedModelError(f"{config.home}: hidden_act is {config.get('hidden_act')!r}; supported: 'gelu'")
    base = float(config.number("rotary_emb_base", default=20000.0))
    context = sizes["n_ctx"] - sizes["n_before"]
    return {
        **bidirectional_keys(config, sizes), "context_length": context, "rope.freq_base": base, **rope_keys(config)
    }  # fmt: skip


def _tasks(config: Config) -> list[str]:
    tasks = config.get("lora_adaptations")
    if not isinstance(tasks, list) or not tasks or not all(isinstance(task, str) for task in tasks):
        raise config.wrong(("lora_adaptations",), "a list of names", tasks)
    return tasks


def _adapted_keys(config: Config, sizes: Sizes) -> Mapping[str, Any]:
    texts = config.mapping("task_instructions")
    if not all(isinstance(text, str) for text in texts.values()):
        raise ModelFormatError(f"{config.home}: task_instructions is not an object of texts")
    prompts = {"prompt.names": list(texts), "prompt.texts": list(texts.values())} if texts else {}
    return {**_keys(config, sizes), "adapter.tasks": _tasks(config), "adapter.rank": sizes["lora_rank"], **prompts}


def _adapted_sizes(config: Config) -> dict[str, int]:
    return roberta_sizes(config) | {"n_tasks": len(_tasks(config)), "lora_rank": config.whole("lora_rank", default=4)}


def _masks(config: Config, sizes: Sizes) -> Mapping[str, NDArray[np.float32]]:
    """A row of zeros for texts without a task; for each task its scale where its rows are."""
    own = np.eye(sizes["n_tasks"], dtype=np.float32).repeat(sizes["lora_rank"], axis=1)
    scale = config.number("lora_alpha", default=1.0) / sizes["lora_rank"]
    return {"adapters.weight": np.concatenate([np.zeros_like(own[:1]), np.float32(scale) * own])}


def _side_by_side(axis: int) -> Transform:
    """[tasks, ...] of three dimensions: those of the tasks behind each other along `axis`, which comes first or last.

    0: [tasks, rank, m] -> [tasks * rank, m]. 1: [tasks, m, rank] -> [m, tasks * rank]. 2: [tasks, rank, m] turned.
    """

    def apply(values: NDArray[Any], sizes: Sizes) -> NDArray[Any]:
        if axis == 0:
            return values.reshape(-1, values.shape[-1])
        turned = values.transpose(1, 0, 2) if axis == 1 else values.transpose(2, 0, 1)
        return turned.reshape(turned.shape[0], -1)

    def shape(old: tuple[int, ...], sizes: Sizes) -> tuple[int, ...]:
        if axis == 0:
            return old[0] * old[1], old[2]
        return (old[1], old[0] * old[2]) if axis == 1 else (old[2], old[0] * old[1])

    return Transform(apply, shape, entrywise=False)


def _adapter(tensor: TensorMap) -> tuple[TensorMap, ...]:
    """The adapters of a matrix [out, in]; those of a table [rows, n_embd] have A and B exchanged."""
    out, into = tensor.shape
    target, source = (name.removesuffix("weight") for name in (tensor.target, tensor.source))
    down: tuple[str | int, ...] = ("n_tasks", "lora_rank", into)
    up: tuple[str | int, ...] = ("n_tasks", out, "lora_rank")
    first, second = ((up, 1), (down, 2)) if target.startswith("token_") else ((down, 0), (up, 1))
    return (
        TensorMap(f"{target}lora_a.weight", f"{source}lora_A", first[0], _side_by_side(first[1])),
        TensorMap(f"{target}lora_b.weight", f"{source}lora_B", second[0], _side_by_side(second[1])),
    )


JINA = encoder(
    "jina-bert-v3",
    ("JinaEmbeddingsV3Model", "JinaEmbeddingsV3ForMaskedLM"),
    (*ROTATED, *PLAIN_MLP),
    defaults={"norm_eps": 1e-5, "type_vocab_size": 1, "pad_token_id": 1},
    more_keys=_keys,
    renames=(
        *RENAMES,
        (r"\.mixer\.", ".attn."),
        (r"\.parametrizations\.weight\.original$", ".weight"),
        (r"\.parametrizations\.weight\.0\.(?=lora_[AB]$)", "."),
    ),
    heads=(POOLER, r"^lm_head\."),
)
ARCHITECTURES = (
    replace(JINA, sizes=roberta_sizes),
    replace(
        JINA,
        classes=("XLMRobertaModel",),
        fits=lambda config: config.get("lora_adaptations") is not None,
        sizes=_adapted_sizes,
        more_keys=_adapted_keys,
        made_tensors=_masks,
        tensors=(
            *JINA.tensors,
            *(part for tensor in JINA.tensors if len(tensor.shape) == 2 for part in _adapter(tensor)),
        ),
        always_f32=(r"\.lora_[ab]\.", r"^adapters\."),
    ),
)
