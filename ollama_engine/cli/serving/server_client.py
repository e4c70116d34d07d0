"""Requests to a running server, whose address is OLLAMA_HOST's."""

from __future__ import annotations

import json
import os
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import ProxyHandler, Request, build_opener

from ollama_engine.cli.errors import InputError
from ollama_engine.server.setting_readers import texts
from ollama_engine.server.settings import SETTINGS, read_address

__all__ = ["ask", "server_url"]

HOST_VARIABLE = "OLLAMA_HOST"
SECONDS = 600.0
"""A model that is unloaded may have requests to end."""


def server_url() -> str:
    """The server's address: http://127.0.0.1:11434 where OLLAMA_HOST says nothing. Raises ConfigError."""
    text = os.environ.get(HOST_VARIABLE, "").strip(" \t\"'")
    host, port = read_address(HOST_VARIABLE, text)
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # what listens everywhere is asked here
    scheme = "https" if text.lower().startswith("https://") else "http"
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"


def ask(path: str, body: dict[str, Any] | None = None) -> Any:
    """The JSON that the server answers to GET, or with a body to POST. Raises InputError, which says what is wrong."""
    url = server_url()
    data = None if body is None else json.dumps(body).encode()
    request = Request(f"{url}{path}", data, {"Content-Type": "application/json", **_key()})
    is_here = urlsplit(url).hostname in ("localhost", "127.0.0.1", "::1")  # no proxy would find this machine
    opener = build_opener(ProxyHandler({})) if is_here else build_opener()
    try:
        with opener.open(request, timeout=SECONDS) as response:
            return json.load(response)
    except HTTPError as error:
        with error:
            raise InputError(f"{url}: {_said(error)}") from None
    except (URLError, OSError) as error:
        why = getattr(error, "reason", error)
        raise InputError(f"no server answers at {url} ({why}); ollama-engine serve starts one") from None
    except ValueError:
        raise InputError(f"{url} does not answer as a server of models does") from None


def _key() -> dict[str, str]:
    """The header with the first key of the variable that gives a server its keys."""
    keys = texts(os.environ.get(SETTINGS["api_keys"].variable, "").strip(" \t\"'"))
    return {"Authorization": f"Bearer {keys[0]}"} if keys else {}


def _said(error: HTTPError) -> str:
    try:
        return str(json.load(error)["error"])
    except (ValueError, KeyError, TypeError):
        return f"status {error.code}"
