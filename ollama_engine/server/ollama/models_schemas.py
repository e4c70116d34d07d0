"""Bodies of Ollama's requests about models on disk."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from ollama_engine.server.ollama.schemas import Body

__all__ = ["CopyRequest", "CreateRequest", "DeleteRequest", "ShowRequest", "TransferRequest"]


class Named(Body):
    """A request about one model. `name` is the older word for `model`."""

    model: str = Field("", description="[host/][namespace/]model[:tag]", examples=["demo"])
    name: str = Field("", description="older word for `model`")

    @property
    def chosen_name(self) -> str:
        """The model's name; "" for none."""
        return self.model or self.name


class ShowRequest(Named):
    """POST /api/show."""

    verbose: bool = Field(False, description="also long arrays of the metadata, and all tensors")
    system: str = Field("", description="shown instead of the model's own")
    template: str = Field("", description="shown instead of the model's own")
    options: dict[str, Any] | None = Field(None, description="shown above the model's own parameters")


class DeleteRequest(Named):
    """DELETE /api/delete."""


class CopyRequest(Body):
    """POST /api/copy."""

    source: str = Field("", description="a model of the store")
    destination: str = Field("", description="its second name")


class TransferRequest(Named):
    """POST /api/pull and /api/push."""

    insecure: bool = Field(False, description="speak http to the registry")
    stream: bool | None = Field(None, description="whether progress comes in lines of JSON (default true)")
    username: str = Field("", description="for registries that ask for one")
    password: str = ""


class CreateRequest(Named):
    """POST /api/create."""

    from_: str = Field("", alias="from", description="the model that it is made from")
    files: dict[str, str] | None = Field(None, description="names of files -> digests of uploaded blobs")
    adapters: dict[str, str] | None = Field(None, description="names of adapters' files -> digests")
    template: str = Field("", description="prompt template, in Go's syntax")
    system: str = ""
    parameters: dict[str, Any] | None = None
    messages: list[dict[str, Any]] | None = None
    license: str | list[str] | None = None
    quantize: str = Field("", description="q4_K_M, q8_0 ...: for weights that are floats")
    quantization: str = Field("", description="older word for `quantize`")
    renderer: str = ""
    parser: str = ""
    requires: str = ""
    stream: bool | None = Field(None, description="whether progress comes in lines of JSON (default true)")
