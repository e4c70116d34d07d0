"""Facts of a loaded model, for the APIs."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ollama_engine.server.served import ModelFacts
from ollama_engine.store.capabilities import TEMPLATE_ABILITIES, file_abilities, go_abilities

if TYPE_CHECKING:
    from ollama_engine.engine import Engine

__all__ = ["facts_of", "with_template"]


def facts_of(engine: Engine) -> ModelFacts:
    """Facts of a loaded model, which do not change, with its file's own template."""
    info, memory = engine.info, engine.memory
    template = info.metadata.get("tokenizer.chat_template")
    capabilities = set(file_abilities(info.metadata, template if isinstance(template, str) else None))
    # Any model that answers can make vectors too; an encoder answers nothing.
    capabilities |= {"embedding"} if info.n_embd is not None else set()
    capabilities |= {"vision"} if info.reads_images else set()
    capabilities |= {"completion"} if info.generates else set()
    cpu = memory.devices[-1].device
    return ModelFacts(
        architecture=info.architecture, num_ctx=info.num_ctx, context_length=info.context_length, n_embd=info.n_embd,
        n_parameters=info.n_parameters, parallel=engine.config.parallel, capabilities=frozenset(capabilities),
        memory_bytes=memory.total,
        device_bytes=sum(device.allocated + device.mapped for device in memory.devices if device.device != cpu),
        devices=memory.devices, system=info.system,
    )  # fmt: skip


def with_template(facts: ModelFacts, template: str | None) -> ModelFacts:
    """The same for a model whose Modelfile has a template, which decides instead of the file's."""
    if template is None:
        return facts
    return replace(facts, capabilities=facts.capabilities - TEMPLATE_ABILITIES | go_abilities(template))
