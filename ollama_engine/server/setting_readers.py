"""Readers of settings: from the text of a variable or flag to a value. A ValueError says what was expected."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

from ollama_engine.errors import ConfigError
from ollama_engine.home_path import made_at_home
from ollama_engine.ml.device.worker_address import SCHEME, read_address
from ollama_engine.server.durations import duration
from ollama_engine.server.sizes import SIZE, bytes_of

__all__ = ["DEFAULT_PORT", "address", "among", "attention", "device_names", "folder", "level", "number", "patience",
           "seconds", "size", "switch", "texts"]  # fmt: skip

DEFAULT_PORT = 11434
PORTS = {"http": 80, "https": 443}
SWITCHES = {"1": True, "t": True, "true": True, "on": True, "yes": True,
            "0": False, "f": False, "false": False, "off": False, "no": False}  # fmt: skip
LEVELS = {"false": 0, "f": 0, "true": 1, "t": 1}
TIME = "a number of seconds, or a duration such as 5m or 1h30m"


def texts(text: str) -> tuple[str, ...]:
    """The parts that commas separate."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


def device_names(text: str) -> tuple[str, ...]:
    """Names of devices, of which those of workers are checked: which others there are, loading a model says."""
    names = texts(text)
    for name in names:
        if name.startswith(SCHEME):
            try:
                read_address(name)
            except ConfigError:
                raise ValueError("names that `devices` lists, and workers as rpc://HOST:PORT") from None
    return names


def shares(text: str) -> tuple[float, ...]:
    """Shares of devices; none for an empty text."""
    expected = "numbers from 0, such as 3,1, one of them above 0"
    try:
        numbers = tuple(float(part) for part in texts(text))
    except ValueError:
        raise ValueError(expected) from None
    if numbers and not (min(numbers) >= 0 and 0 < sum(numbers) < math.inf):
        raise ValueError(expected)
    return numbers


def switch(text: str) -> bool:
    """Whether it is on."""
    if text.lower() not in SWITCHES:
        raise ValueError("1 or 0")
    return SWITCHES[text.lower()]


def attention(text: str) -> str:
    """Whether flash attention is on, as the engine has it."""
    if text.lower() == "auto":
        return "auto"
    return "on" if switch(text) else "off"


def place(text: str) -> str:
    """on, off, or a folder."""
    lower = text.lower()
    return ("on" if SWITCHES[lower] else "off") if lower in SWITCHES else lower if lower in ("on", "off") else text


def folder(text: str) -> Path:
    """A folder that is made where it is not there; `~` is the user's home."""
    try:
        return Path(made_at_home(text))
    except FileNotFoundError as error:
        raise ValueError(f"a folder; {error.strerror}") from None


def level(text: str) -> int:
    """The log's level."""
    digit = str(LEVELS.get(text.lower(), text))
    if digit not in ("0", "1", "2"):
        raise ValueError("0 (info), 1 (debug) or 2 (trace)")
    return int(digit)


def number(low: int) -> Callable[[str], int]:
    """A reader of whole numbers."""

    def read(text: str) -> int:
        if not text.isascii() or not text.isdigit() or len(text) > 18 or int(text) < low:
            raise ValueError(f"a whole number from {low}")
        return int(text)

    return read


def size(low: int) -> Callable[[str], int]:
    """A reader of amounts of memory, in bytes."""

    def read(text: str) -> int:
        if (found := bytes_of(text)) < low:
            raise ValueError(f"{SIZE}, from {low}")
        return found

    return read


def seconds(text: str) -> float:
    """A duration or a number of seconds; negative: for ever."""
    try:
        value = float(text)
    except ValueError:
        try:
            value = duration(text)
        except ValueError:
            raise ValueError(TIME) from None
    if math.isnan(value):
        raise ValueError(TIME)
    return math.inf if value < 0 else value


def patience(text: str) -> float:
    """`seconds`, where 0 is for ever too."""
    return seconds(text) or math.inf


def among(choices: tuple[str, ...]) -> Callable[[str], str]:
    """A reader of words."""

    def read(text: str) -> str:
        if text not in choices:
            raise ValueError(f"one of {', '.join(choices)}")
        return text

    return read


def address(text: str) -> tuple[str, int]:
    """Host and port of "host", "host:port", ":port", "[::1]:port" or an address with a scheme."""
    scheme, mark, rest = text.rpartition("://")
    default = PORTS.get(scheme, DEFAULT_PORT) if mark else DEFAULT_PORT
    rest = rest.split("/", 1)[0]
    host, colon, port = rest, "", ""
    if rest.startswith("[") or rest.count(":") == 1:
        host, colon, port = rest.rpartition(":") if ":" in rest.rpartition("]")[2] else (rest, "", "")
    if colon and not (port.isascii() and port.isdigit() and len(port) < 6 and int(port) < 1 << 16):
        raise ValueError("HOST, HOST:PORT or :PORT, with a port from 0 to 65535")
    return host.strip("[]") or "127.0.0.1", int(port) if colon else default
