"""BrowserGuard: middleware that keeps web sites away from a server on this machine, those aside that may call it.

A page of any site can have the visitor's browser send requests to 127.0.0.1. Browsers name the page's origin then, and
it has to be one of those allowed. A site whose name is made to point to 127.0.0.1 (DNS rebinding) is an origin of its
own, but its name stands in "Host": a server at a loopback address answers to names of this machine only.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Iterable

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ollama_engine.server.errors import ApiError

__all__ = ["BrowserGuard", "is_loopback"]

LOCAL_HOSTS = ("localhost", "127.0.0.1", "0.0.0.0", "[::1]")
DEFAULT_ORIGINS = (
    *(f"{scheme}://{host}{port}" for host in LOCAL_HOSTS for scheme in ("http", "https") for port in ("", ":*")),
    "app://*", "file://*", "tauri://*", "vscode-webview://*", "vscode-file://*",
    "chrome-extension://*", "moz-extension://*", "safari-extension://*", "safari-web-extension://*",
    "ms-browser-extension://*",
)  # fmt: skip
LOCAL_SUFFIXES = (".localhost", ".local", ".internal")
METHODS = "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS"
A_DAY = "86400"


class BrowserGuard:
    """Refuses hosts and origins with status 403, and tells browsers which of them may read the answer (CORS).

    Args:
        app: what is guarded.
        origins: allowed ones besides those of this machine; see `pattern`.
        checks_hosts: whether "Host" has to name this machine.
    """

    def __init__(self, app: ASGIApp, origins: Iterable[str] = (), *, checks_hosts: bool = True) -> None:
        self._app = app
        self._allowed = re.compile("|".join(map(pattern, (*DEFAULT_ORIGINS, *origins))), re.IGNORECASE)
        self._checks_hosts = checks_hosts
        self._own_name = socket.gethostname().lower()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        host, origin = headers.get("host", ""), headers.get("origin", "")
        if self._checks_hosts and not self._is_here(host):
            raise ApiError(403, "this server answers to names of its own machine only")
        if not origin or origin in (f"http://{host}", f"https://{host}"):
            await self._app(scope, receive, send)
            return
        if not self._allowed.fullmatch(origin):
            raise ApiError(403, "this origin may not call the server; OLLAMA_ORIGINS allows others")
        if scope["method"] == "OPTIONS" and "access-control-request-method" in headers:
            await preflight(headers)(scope, receive, with_origin(send, origin))
            return
        await self._app(scope, receive, with_origin(send, origin))

    def _is_here(self, host: str) -> bool:
        """Whether a "Host" names this machine, as far as no name of another site does."""
        name = without_port(host).lower().rstrip(".")
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return name in ("", "localhost", self._own_name) or name.endswith(LOCAL_SUFFIXES)
        return address.is_loopback or address.is_private or address.is_unspecified


def pattern(origin: str) -> str:
    """A regular expression for an origin in which "*" stands for a port, or for any part of a host; alone for all."""
    if origin == "*":
        return ".*"
    body = re.escape(origin)
    return re.sub(r":\\\*$", r":[0-9]+", body).replace(r"\*", "[^/@?#]*")


def without_port(host: str) -> str:
    """The host of "host:port", an IPv6 address without its brackets."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.rpartition(":")[0] if ":" in host else host


def is_loopback(host: str) -> bool:
    """Whether an address to listen at is reached from this machine only."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def preflight(headers: Headers) -> Response:
    """The answer to a browser that asks before it sends a request."""
    allowed = {
        "Access-Control-Allow-Methods": METHODS,
        "Access-Control-Allow-Headers": headers.get("access-control-request-headers", ""),
        "Access-Control-Max-Age": A_DAY,
    }
    return Response(status_code=204, headers=allowed)


def with_origin(send: Send, origin: str) -> Send:
    """`send`, with headers that let pages of the origin read the answer."""

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            headers["Access-Control-Allow-Origin"] = origin
            headers.add_vary_header("Origin")
        await send(message)

    return sending
