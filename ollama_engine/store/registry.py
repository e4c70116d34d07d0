"""Registry: the conversation with one repository of an OCI registry: manifests, blobs, and who may have them.

Source: https://github.com/opencontainers/distribution-spec/blob/main/spec.md, and for tokens
https://distribution.github.io/distribution/spec/auth/token/.
"""

from __future__ import annotations

import asyncio
import json
import re
from base64 import b64encode
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final
from urllib.parse import urljoin

import httpx

from ollama_engine.closing import AsyncClosing
from ollama_engine.errors import ModelNotFoundError, RegistryError
from ollama_engine.store.manifest import MANIFEST_TYPE, MAX_BYTES, Layer, Manifest
from ollama_engine.store.names import ModelName
from ollama_engine.store.transfers import TransferSettings

__all__ = ["Registry", "TransientError"]

OCI_MANIFEST: Final = "application/vnd.oci.image.manifest.v1+json"
TRANSIENT_STATUS: Final = frozenset({408, 425, 429, 500, 502, 503, 504})
TRANSIENT_ERRORS: Final = (httpx.TransportError, httpx.StreamError)
CONNECT_SECONDS: Final = 10.0
"""How long a connection may take to be made. One to the other side of the world takes half a second."""
MAX_ANSWER: Final = 64 << 10
"""Bytes of an error's text that are read."""

_PARAMETER: Final = re.compile(r'([a-zA-Z_]+)="([^"]*)"')


class TransientError(Exception):
    """A failure that may be gone at the next try."""


class Registry(AsyncClosing):
    """One model's repository in a registry; an async context manager.

    Args:
        name: the model; its host, namespace and model are the repository.
        settings: time limits and retries.
        insecure: speak http instead of https.
        credentials: (user, password), for registries that ask for them.
    """

    def __init__(
        self, name: ModelName, settings: TransferSettings, *, insecure: bool = False,
        credentials: tuple[str, str] | None = None,
    ) -> None:  # fmt: skip
        self.name = name
        self.settings = settings
        self._base = f"{'http' if insecure else 'https'}://{name.host}/v2/{name.namespace}/{name.model}"
        self._credentials = credentials
        self._authorization: str | None = None
        self._has_answered = False
        limits = httpx.Limits(max_connections=4 * settings.streams)
        hooks = {"request": [self._refuse_plain_text]}  # called for each address that a redirect leads to
        patience = httpx.Timeout(settings.timeout, connect=min(CONNECT_SECONDS, settings.timeout))
        self._client = httpx.AsyncClient(follow_redirects=True, timeout=patience, limits=limits, event_hooks=hooks)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def _refuse_plain_text(self, request: httpx.Request) -> None:
        """Raise RegistryError where a registry that is asked over https leads to http.

        Passwords and tokens would be read on the way, and services inside this network take http from everybody.
        """
        if self._base.startswith("https://") and request.url.scheme != "https":
            raise RegistryError(f"{self.name.host} leads to {request.url.host} without TLS, which is refused")

    # -- manifests -----------------------------------------------------------------------------------------------------

    async def manifest(self) -> Manifest:
        """The manifest of the model's tag. Raises ModelNotFoundError, RegistryError."""
        url = f"{self._base}/manifests/{self.name.tag}"
        headers = {"Accept": f"{MANIFEST_TYPE}, {OCI_MANIFEST}"}
        response, data = await self.ask("GET", url, headers=headers)
        manifest = Manifest.parse(data)
        told = response.headers.get("Docker-Content-Digest", "")
        if told.startswith("sha256:") and told != f"sha256:{manifest.digest}":
            raise RegistryError(f"{self.name.host} sent a manifest whose digest is not {told}; try again")
        return manifest

    async def put_manifest(self, manifest: Manifest) -> None:
        """Publish a manifest under the model's tag, when all of its blobs are there."""
        url = f"{self._base}/manifests/{self.name.tag}"
        await self.ask("PUT", url, headers={"Content-Type": MANIFEST_TYPE}, content=manifest.data)

    # -- blobs ---------------------------------------------------------------------------------------------------------

    def blob_url(self, layer: Layer) -> str:
        """Where a blob is read."""
        return f"{self._base}/blobs/{layer.digest}"

    async def has_blob(self, layer: Layer) -> bool:
        """Whether the registry has a blob."""
        try:
            await self.ask("HEAD", self.blob_url(layer))
        except ModelNotFoundError:
            return False
        return True

    async def begin_upload(self) -> str:
        """The address that takes a new blob's bytes."""
        response, _ = await self.ask("POST", f"{self._base}/blobs/uploads/", content=b"")
        return self.location(response)

    def location(self, response: httpx.Response) -> str:
        """Where an upload goes on."""
        found: str | None = response.headers.get("Location")
        if not found:
            raise RegistryError(f"{self.name.host} does not say where a blob is to be sent")
        return str(urljoin(str(response.request.url), found))

    # -- requests ------------------------------------------------------------------------------------------------------

    async def ask(self, method: str, url: str, **request: Any) -> tuple[httpx.Response, bytes]:
        """The response to a request and its body. The request is sent again after failures that may pass.

        Raises ModelNotFoundError for 404, RegistryError for every other status that is no success, for a body that is
        too large, and when the registry cannot be reached.
        """
        failures = 0
        while True:
            try:
                async with self.stream(method, url, **request) as response:
                    return response, await self.read(response)
            except TransientError as error:
                failures += 1
                if failures > self.settings.retries:
                    raise RegistryError(f"{self.name.host}: {error}") from error
            await asyncio.sleep(self.settings.wait(failures))

    async def read(self, response: httpx.Response) -> bytes:
        """The body of a response that is no blob. Raises RegistryError where it is larger than any manifest.

        Decompressed bytes are counted: some KiB of gzip may stand for all of this machine's memory.
        """
        data = bytearray()
        async for piece in response.aiter_bytes():
            data += piece
            if len(data) > MAX_BYTES:
                raise RegistryError(
                    f"{self.name.host} sent more than {MAX_BYTES >> 20} MiB where no blob was asked for"
                )
        return bytes(data)

    @asynccontextmanager
    async def stream(
        self, method: str, url: str, *, body: Callable[[], AsyncIterator[bytes]] | None = None,
        headers: Mapping[str, str] | None = None, content: bytes | None = None,
    ) -> AsyncIterator[httpx.Response]:  # fmt: skip
        """One try of a request, whose body is read by the caller. `body` makes the content to send anew for each try.

        Raises TransientError for what may pass; otherwise as `ask`. That no connection can be made may pass where the
        registry has answered before: else its name is wrong, or there is no network.
        """
        try:
            for is_last in (False, True):
                sent = dict(headers or {})
                if self._authorization is not None and url.startswith(self._base.partition("/v2/")[0] + "/"):
                    sent["Authorization"] = self._authorization
                data = content if body is None else body()
                async with self._client.stream(method, url, headers=sent, content=data) as response:
                    self._has_answered = True
                    if response.status_code == 401 and not is_last:
                        await self._authorize(response)
                        continue
                    await self._check(response)
                    yield response
                    return
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            reason = str(error) or f"no answer in {CONNECT_SECONDS:.0f} s"
            told = f"it cannot be reached ({reason}); are its name and the network right?"
            if self._has_answered:
                raise TransientError(told) from error
            raise RegistryError(f"{self.name.host}: {told}") from error
        except TRANSIENT_ERRORS as error:
            raise TransientError(f"{type(error).__name__}: {error}") from error
        except (httpx.RequestError, httpx.InvalidURL) as error:  # it leads in a circle, or sends what is no gzip
            raise RegistryError(f"{self.name.host}: {type(error).__name__}: {error}") from error

    async def _check(self, response: httpx.Response) -> None:
        status = response.status_code
        if response.is_success:
            return
        said = "" if response.request.method == "HEAD" else await _said(response)
        what = f"{response.request.method} {response.url.path}: status {status}{said}"
        if status in TRANSIENT_STATUS:
            raise TransientError(what)
        if status == 404:
            raise ModelNotFoundError(f"model '{self.name.short}' not found: {self.name.host} has no such file ({what})")
        if status in (401, 403):
            raise RegistryError(f"{self.name.host} does not allow this: {what}; it may be private, or not be there")
        raise RegistryError(f"{self.name.host}: {what}")

    async def _authorize(self, response: httpx.Response) -> None:
        """Answer a challenge, so that the next try is authorized. Raises RegistryError where that is not possible."""
        challenge = response.headers.get("WWW-Authenticate", "")
        kind, _, rest = challenge.partition(" ")
        values = dict(_PARAMETER.findall(rest))
        if kind.lower() == "basic" and self._credentials is not None:
            joined = ":".join(self._credentials).encode()
            self._authorization = f"Basic {b64encode(joined).decode()}"
        elif kind.lower() == "bearer" and values.get("realm"):
            self._authorization = f"Bearer {await self._token(values)}"
        else:
            raise RegistryError(f"{self.name.host} asks for credentials ({kind or 'without a challenge'})")

    async def _token(self, challenge: Mapping[str, str]) -> str:
        query = {key: challenge[key] for key in ("service", "scope") if key in challenge}
        auth = None if self._credentials is None else httpx.BasicAuth(*self._credentials)
        address = challenge["realm"]
        async with self._client.stream("GET", address, params=query, auth=auth) as response:
            if response.status_code in TRANSIENT_STATUS:
                raise TransientError(f"GET {address}: status {response.status_code}")
            if not response.is_success:
                raise RegistryError(f"{address} gives no token: status {response.status_code}{await _said(response)}")
            data = await self.read(response)
        try:
            found = json.loads(data)
            token = found.get("token") or found.get("access_token")
        except (ValueError, AttributeError, RecursionError):
            token = None
        if not isinstance(token, str):
            raise RegistryError(f"{address} gives no token that can be read")
        return token


async def _said(response: httpx.Response) -> str:
    """The beginning of an error's text, in one line."""
    data = b""
    async for piece in response.aiter_bytes():
        data += piece
        if len(data) > MAX_ANSWER:
            break
    text = " ".join(data.decode("utf-8", "replace").split())[:300]
    return f", {text}" if text else ""
