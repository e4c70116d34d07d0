"""Facts of a loaded model, for the APIs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ollama_engine.server.served import ModelFacts

if TYPE_CHECKING:
    from ollama_engine.engine import Engine

__all__ = ["facts_of"]


def facts_of(engine: Engine) -> ModelFacts:
    """What does not change of a loaded model."""
    info, memory = engine.info, engine.memory
    capabilities = {"vision"} if info.reads_images else set()
    if engine.chat_templates or info.pooling is None:
        capabilities |= {"completion"}
    if info.n_embd is not None:
        capabilities |= {"embedding"}
    cpu = memory.devices[-1].device
    return ModelFacts(
        architecture=info.architecture, num_ctx=info.num_ctx, context_length=info.context_length, n_embd=info.n_embd,
        n_parameters=info.n_parameters, parallel=engine.config.parallel, capabilities=frozenset(capabilities),
        memory_bytes=memory.total,
        device_bytes=sum(device.allocated + device.mapped for device in memory.devices if device.device != cpu),
    )  # fmt: skip
