"""Bodies of Ollama's requests about models on disk. Unknown fields are accepted, as Ollama does."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

__all__ = ["CopyRequest", "DeleteRequest", "ShowRequest", "TransferRequest"]


class Named(BaseModel):
    """A request about one model. `name` is the older word for `model`."""

    model: str = ""
    name: str = ""

    @property
    def wanted(self) -> str:
        """The model's name; "" for none."""
        return self.model or self.name


class ShowRequest(Named):
    """POST /api/show."""

    verbose: bool = False
    system: str = ""
    template: str = ""
    options: dict[str, Any] | None = None


class DeleteRequest(Named):
    """DELETE /api/delete."""


class CopyRequest(BaseModel):
    """POST /api/copy."""

    source: str = ""
    destination: str = ""


class TransferRequest(Named):
    """POST /api/pull and /api/push."""

    insecure: bool = False
    stream: bool | None = None
    username: str = ""
    password: str = ""
