"""ServerSettings: what Ollama's environment variables and the flags of `serve` say, read and checked once."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["ServerSettings"]


@dataclass(frozen=True)
class ServerSettings:
    """How the server runs. Defaults are Ollama's.

    Attributes:
        host: address to listen at.
        port: TCP port; 0 takes a free one.
        origins: additional origins that browsers may call from ("https://example.org", "*").
        models: folder of the model store.
        keep_alive: seconds that a model stays loaded after its last request; math.inf for ever.
        num_parallel: requests of one model computed side by side.
        max_loaded_models: models loaded at once; 0 takes 3 for each GPU, or 3.
        max_queue: requests that may wait.
        context_length: num_ctx where neither request nor model says; 0 takes what the engine takes.
        kv_cache_type: "f16", "q8_0" ...
        flash_attention: "auto", "on" or "off".
        multiuser_cache: keep the prefixes of each user's requests apart less greedily; see the docs.
        load_timeout: seconds without progress after which loading is given up.
        debug: 0 info, 1 debug, 2 trace.
        isolation: "none": engines in this process; "process": each in a process of its own.
        api_keys: if there are any, a request needs one of them ("Authorization: Bearer KEY" or "x-api-key: KEY").
        files: name -> path of GGUF files that are served beside the store, and of the packaged models.
    """

    host: str = "127.0.0.1"
    port: int = 11434
    origins: tuple[str, ...] = ()
    models: Path = field(default_factory=lambda: Path.home() / ".ollama" / "models")
    keep_alive: float = 300.0
    num_parallel: int = 1
    max_loaded_models: int = 0
    max_queue: int = 512
    context_length: int = 0
    kv_cache_type: str = "f16"
    flash_attention: str = "auto"
    multiuser_cache: bool = False
    load_timeout: float = 300.0
    debug: int = 0
    isolation: str = "none"
    api_keys: tuple[str, ...] = ()
    files: tuple[tuple[str, Path], ...] = ()
