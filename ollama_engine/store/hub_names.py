"""Which names are repositories of the Hugging Face Hub."""

from __future__ import annotations

from typing import Final

from ollama_engine.store.names import ModelName

__all__ = ["is_hub_name"]

HUB_HOSTS: Final = ("hf.co", "huggingface.co", "www.huggingface.co")


def is_hub_name(name: ModelName) -> bool:
    """Whether a name's host is the Hub, which is asked by its own API."""
    return name.host.lower() in HUB_HOSTS
