"""Architecture name -> model class, imported when first asked for.

Other packages add architectures through the entry point group `ollama_engine.models`, whose entries are named as
`general.architecture` and point to a class.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

from ollama_engine.errors import UnsupportedModelError
from ollama_engine.models.base import Model

if TYPE_CHECKING:
    from importlib.metadata import EntryPoints

ENTRY_POINTS = "ollama_engine.models"

_BUILT_IN = {
    "bert": "ollama_engine.models.bert:Bert",
    "cohere2": "ollama_engine.models.command_r:Cohere2",
    "command-r": "ollama_engine.models.command_r:CommandR",
    "gemma2": "ollama_engine.models.gemma2:Gemma2",
    "gemma3": "ollama_engine.models.gemma3:Gemma3",
    "gpt-oss": "ollama_engine.models.gpt_oss:GptOss",
    "llama": "ollama_engine.models.llama:Llama",
    "mistral3": "ollama_engine.models.mistral3:Mistral3",
    "modern-bert": "ollama_engine.models.modern_bert:ModernBert",
    "nomic-bert": "ollama_engine.models.bert:NomicBert",
    "olmo2": "ollama_engine.models.olmo2:Olmo2",
    "phi3": "ollama_engine.models.phi3:Phi3",
    "qwen2": "ollama_engine.models.qwen2:Qwen2",
    "qwen25vl": "ollama_engine.models.qwen2:Qwen25VL",
    "qwen2moe": "ollama_engine.models.qwen_moe:Qwen2Moe",
    "qwen3": "ollama_engine.models.qwen3:Qwen3",
    "qwen3moe": "ollama_engine.models.qwen_moe:Qwen3Moe",
    "starcoder2": "ollama_engine.models.starcoder2:StarCoder2",
}

_READS_IMAGES = {"llama4": "Llama 4", "mllama": "Llama 3.2 Vision"}
"""Models that can be converted, and whose text part is no other model's."""


def architectures() -> tuple[str, ...]:
    """Names of all architectures, those of other packages included."""
    return tuple(sorted({*_BUILT_IN, *(e.name for e in _of_others())}))


def model_class(architecture: str) -> type[Model]:
    """The class for `general.architecture`. Raises UnsupportedModelError that lists the known ones."""
    target = _BUILT_IN.get(architecture)
    if target is not None:
        module, name = target.split(":")
        return cast("type[Model]", getattr(import_module(module), name))
    for entry in _of_others():
        if entry.name == architecture:
            loaded: Any = entry.load()
            return cast("type[Model]", loaded)
    if architecture in _READS_IMAGES:
        raise UnsupportedModelError(
            f"architecture {architecture!r} ({_READS_IMAGES[architecture]}) reads images, which is not supported yet; "
            f"supported: {', '.join(architectures())}"
        )
    raise UnsupportedModelError(
        f"architecture {architecture!r} is not supported; supported: {', '.join(architectures())}"
    )


def _of_others() -> EntryPoints:
    """Looks at every installed package, with a module that takes long to import: most models do without."""
    from importlib.metadata import entry_points  # noqa: PLC0415

    return entry_points(group=ENTRY_POINTS)
