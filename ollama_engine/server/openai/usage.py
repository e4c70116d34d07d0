"""Counts of tokens as OpenAI's APIs write them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ollama_engine.runner.request.results import Usage

__all__ = ["usage_body"]


def usage_body(prompts: Sequence[Usage], answers: Sequence[Usage], *, reasoning_tokens: int = 0) -> dict[str, Any]:
    """The tokens of answers. `prompts` are those of the first answer to each prompt, which counts once."""
    read = sum(usage.prompt_tokens for usage in prompts)
    written = sum(usage.completion_tokens + usage.discarded_tokens for usage in answers)
    return {
        "prompt_tokens": read,
        "completion_tokens": written,
        "total_tokens": read + written,
        "prompt_tokens_details": {"cached_tokens": sum(usage.cached_tokens for usage in prompts)},
        "completion_tokens_details": {"reasoning_tokens": reasoning_tokens},
    }
