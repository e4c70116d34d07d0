"""ServerSettings: what Ollama's environment variables and the flags of `serve` say, read and checked once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from ollama_engine.config import CHOICES
from ollama_engine.errors import ConfigError, Option
from ollama_engine.server import setting_readers as readers

__all__ = ["SETTINGS", "ServerSettings", "Setting", "read_address"]


class Setting(NamedTuple):
    """How a setting is said.

    Attributes:
        variable: of the environment.
        read: makes the value of a text. Its ValueError says what was expected.
        metavar: what the flag takes; "" for a switch.
        help: what it does.
    """

    variable: str
    read: Callable[[str], Any]
    metavar: str
    help: str


SETTINGS: Mapping[str, Setting] = {
    "origins": Setting(
        "OLLAMA_ORIGINS", readers.texts, "URL,...", "origins that browsers may call from, besides this machine's"
    ),
    "models": Setting("OLLAMA_MODELS", readers.folder, "FOLDER", "the model store"),
    "keep_alive": Setting(
        "OLLAMA_KEEP_ALIVE", readers.seconds, "TIME", "how long models stay loaded: 5m, 90s, 0; negative for ever"
    ),
    "sleep": Setting(
        "OLLAMA_ENGINE_SLEEP",
        readers.seconds,
        "TIME",
        "how long models that are unloaded sleep with their chats in a file, before they are closed; 0: not at all",
    ),
    "num_parallel": Setting(
        "OLLAMA_NUM_PARALLEL", readers.number(1), "N", "requests of one model computed side by side"
    ),
    "max_loaded_models": Setting(
        "OLLAMA_MAX_LOADED_MODELS", readers.number(0), "N", "models loaded at once; 0: 3 for each GPU, or 3"
    ),
    "max_queue": Setting("OLLAMA_MAX_QUEUE", readers.number(0), "N", "requests that may wait; others get status 503"),
    "context_length": Setting(
        "OLLAMA_CONTEXT_LENGTH",
        readers.number(0),
        "N",
        "tokens of one request, where it does not say; 0: the engine's choice",
    ),
    "kv_cache_type": Setting(
        "OLLAMA_KV_CACHE_TYPE", readers.among(CHOICES["kv_cache_type"]), "TYPE", "element type of keys and values"
    ),
    "draft": Setting(
        "OLLAMA_ENGINE_DRAFT",
        readers.among(CHOICES["draft"]),
        "HOW",
        "how tokens are guessed that a step verifies",
    ),
    "prefix_store": Setting(
        "OLLAMA_ENGINE_PREFIX_STORE",
        readers.place,
        "on|off|FOLDER",
        "keep keys and values of prompts on disk, so that a restart does not forget them; not encrypted",
    ),
    "prefix_store_bytes": Setting(
        "OLLAMA_ENGINE_PREFIX_STORE_BYTES",
        readers.size(0),
        "BYTES",
        "bytes that this may take; 0: 4 GiB, or a tenth of the free disk if that is less",
    ),
    "expert_cache_bytes": Setting(
        "OLLAMA_ENGINE_EXPERT_CACHE_BYTES",
        readers.size(0),
        "BYTES",
        "memory for experts of a mixture larger than memory; others are read when they are chosen; 0: all are mapped",
    ),
    "draft_model": Setting(
        "OLLAMA_ENGINE_DRAFT_MODEL", str, "MODEL", "a small model that guesses tokens for models with its vocabulary"
    ),
    "flash_attention": Setting("OLLAMA_FLASH_ATTENTION", readers.attention, "1|0|auto", "one-pass attention"),
    "multiuser_cache": Setting("OLLAMA_MULTIUSER_CACHE", readers.switch, "", "share the prefix cache among many users"),
    "load_timeout": Setting(
        "OLLAMA_LOAD_TIMEOUT", readers.patience, "TIME", "give up loading after so long without progress; 0: never"
    ),
    "debug": Setting("OLLAMA_DEBUG", readers.level, "0|1|2", "log more: 1 debug, 2 trace (with prompts and tokens)"),
    "devices": Setting(
        "OLLAMA_ENGINE_DEVICES",
        readers.device_names,
        "NAME,...",
        "devices that models use beside the CPU, such as rpc://HOST:PORT, a worker; by default this machine's GPUs",
    ),
    "tensor_split": Setting(
        "OLLAMA_ENGINE_TENSOR_SPLIT",
        readers.shares,
        "SHARE,...",
        "share of a model's layers for each of these devices, in their order, such as 3,1",
    ),
    "isolation": Setting(
        "OLLAMA_ENGINE_ISOLATION",
        readers.among(("none", "process")),
        "none|process",
        "whether each model has a process of its own",
    ),
    "max_transfer_streams": Setting(
        "OLLAMA_MAX_TRANSFER_STREAMS", readers.number(1), "N", "connections that a pull or push has at once"
    ),
    "max_transfers": Setting(
        "OLLAMA_ENGINE_MAX_TRANSFERS",
        readers.number(1),
        "N",
        "pulls, pushes, creates and uploads that go on at once",
    ),
    "measure_kernels": Setting(
        "OLLAMA_ENGINE_MEASURE_KERNELS",
        readers.switch,
        "1|0",
        "whether the first load measures which kernels are fastest",
    ),
    "noprune": Setting("OLLAMA_NOPRUNE", readers.switch, "", "keep blobs that no model uses when the server starts"),
    "api_keys": Setting("OLLAMA_ENGINE_API_KEYS", readers.texts, "KEY,...", "requests need one of these keys"),
    "max_body": Setting(
        "OLLAMA_ENGINE_MAX_BODY", readers.size(1), "BYTES", "largest body of a request, uploaded files aside"
    ),
    "read_timeout": Setting(
        "OLLAMA_ENGINE_READ_TIMEOUT", readers.patience, "TIME", "how long a client may take to send; 0: for ever"
    ),
    "shutdown_timeout": Setting(
        "OLLAMA_ENGINE_SHUTDOWN_TIMEOUT", readers.seconds, "TIME", "how long answers may go on when the server stops"
    ),
}
"""How each setting is said, but for the address (OLLAMA_HOST) and files."""


@dataclass(frozen=True)
class ServerSettings:
    """How the server runs. Defaults are Ollama's; docs/server.md explains each.

    Attributes:
        host: address to listen at.
        port: TCP port; 0 takes a free one.
        origins: additional origins that browsers may call from ("https://example.org", "http://*.example.org", "*").
        models: folder of the model store.
        keep_alive: seconds that a model stays loaded after its last request; math.inf for ever.
        sleep: seconds that an unloaded model sleeps before it is closed; 0: it is closed at once; math.inf for ever.
        num_parallel: requests of one model computed side by side.
        max_loaded_models: models loaded at once; 0 takes 3 for each GPU, or 3.
        max_queue: requests that may wait.
        context_length: num_ctx where neither request nor model says; 0 takes what the engine takes.
        kv_cache_type: "f16", "q8_0" ...
        draft: "auto", "lookup", "model", "mtp" or "off", `Engine`'s `draft`; for models without a draft model or head
            "model" and "mtp" are "auto".
        draft_model: a model that guesses tokens for those with its vocabulary, `Engine`'s `draft_model`; "" for none.
        prefix_store: "on" (in the user's cache folder), "off" or a folder, `Engine`'s `prefix_store`.
        prefix_store_bytes: bytes that it may take; 0 takes 4 GiB, or a tenth of the free disk if that is less.
        expert_cache_bytes: memory for the experts of each mixture, `Engine`'s `expert_cache_bytes`; 0: all are mapped.
        flash_attention: "auto", "on" or "off".
        multiuser_cache: keep the prefixes of each user's requests apart less greedily; see the docs.
        load_timeout: seconds without progress after which loading is given up; math.inf for never.
        debug: 0 info, 1 debug, 2 trace.
        max_transfer_streams: connections that one pull or push has at a time.
        max_transfers: pulls, pushes, creates and uploads that go on at once; others get status 503.
        measure_kernels: whether the first load on a CPU measures which kernels are the fastest.
        noprune: whether blobs that no model uses stay in the store when the server starts.
        devices: names of the devices that models use beside the CPU, `Engine`'s `devices`; none: this machine's GPUs.
        tensor_split: share of a model's layers for each of them, `Engine`'s `tensor_split`; none: by their free memory.
        isolation: "none": engines in this process; "process": each in a process of its own.
        api_keys: if there are any, a request needs one of them ("Authorization: Bearer KEY" or "x-api-key: KEY").
        max_body: bytes of a request's body; uploads of model files have no limit. The default holds the text of
            the longest contexts, a million tokens of 4 to 8 bytes, and 16 MB of pictures in base64.
        read_timeout: seconds that the head of a request may take, and any pause within its body.
        shutdown_timeout: seconds that running answers have when the server is told to stop.
        files: name -> path of GGUF files that are served beside the store, and of the packaged models.
    """

    host: str = "127.0.0.1"
    port: int = readers.DEFAULT_PORT
    origins: tuple[str, ...] = ()
    models: Path = field(default_factory=lambda: Path.home() / ".ollama" / "models")
    keep_alive: float = 300.0
    sleep: float = 86400.0
    num_parallel: int = 1
    max_loaded_models: int = 0
    max_queue: int = 512
    context_length: int = 0
    kv_cache_type: str = "f16"
    draft: str = "auto"
    prefix_store: str = "on"
    prefix_store_bytes: int = 0
    expert_cache_bytes: int = 0
    draft_model: str = ""
    flash_attention: str = "auto"
    multiuser_cache: bool = False
    load_timeout: float = 300.0
    debug: int = 0
    max_transfer_streams: int = 4
    max_transfers: int = 16
    measure_kernels: bool = True
    noprune: bool = False
    devices: tuple[str, ...] = ()
    tensor_split: tuple[float, ...] = ()
    isolation: str = "none"
    api_keys: tuple[str, ...] = ()
    max_body: int = 32 << 20
    read_timeout: float = 60.0
    shutdown_timeout: float = 10.0
    files: tuple[tuple[str, Path], ...] = ()

    @classmethod
    def from_environment(cls, environment: Mapping[str, str], **changes: Any) -> ServerSettings:
        """Settings of these variables (those of Ollama, and some of our own); `changes` stand above them.

        Spaces and quotes around values are dropped, and an empty value is none. Raises ConfigError for a wrong one.
        """
        values: dict[str, Any] = {}
        given = {name: value.strip().strip("\"'").strip() for name, value in environment.items()}
        if given.get("OLLAMA_HOST"):
            values["host"], values["port"] = read_address("OLLAMA_HOST", given["OLLAMA_HOST"])
        for name, setting in SETTINGS.items():
            if given.get(setting.variable):
                values[name] = read_value(setting.variable, setting.read, given[setting.variable])
        return replace(cls(**values), **changes)


def read_value(name: str, read: Callable[[str], Any], text: str) -> Any:
    """The value of a text. Raises ConfigError that names the variable or flag."""
    try:
        return read(text)
    except ValueError as error:
        raise ConfigError(Option(name), f" is {error}, got {text!r:.120}") from None


def read_address(name: str, text: str) -> tuple[str, int]:
    """Host and port. Raises ConfigError that names the variable or flag."""
    found: tuple[str, int] = read_value(name, readers.address, text)
    return found
