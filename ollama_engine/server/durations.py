"""Times as Go writes and reads them: durations ("1h30m"), `keep_alive`, and timestamps with nanoseconds."""

from __future__ import annotations

import math
import re
import time

from ollama_engine.errors import ConfigError, Option

__all__ = ["FOREVER", "duration", "keep_alive", "nanoseconds", "timestamp"]

UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
PART = re.compile(r"([0-9]+\.?[0-9]*|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h)")
FOREVER = (2**63 - 1) / 1e9
"""The longest that Go can say, in seconds: 292 years."""


def duration(text: str) -> float:
    """Seconds of a duration such as "5m", "1h30m" or "-1s". Raises ValueError for anything else."""
    body = text[1:] if text[:1] in ("+", "-") else text
    parts = PART.findall(body)
    if body == "0":
        return 0.0
    if not parts or "".join(number + unit for number, unit in parts) != body:
        raise ValueError(f"expected a duration such as 5m, 90s or 1h30m, got {text!r:.60}")
    seconds = math.fsum(float(number) * UNITS[unit] for number, unit in parts)
    return -seconds if text[0] == "-" else seconds


def keep_alive(value: float | str | None) -> float | None:
    """Seconds that a model stays loaded: math.inf for what is negative, None as the server has it.

    Raises ConfigError for what is neither a number nor a duration.
    """
    if value is None:
        return None
    try:
        seconds = duration(value) if isinstance(value, str) else float(value)
    except (ValueError, OverflowError):
        seconds = math.nan
    if math.isnan(seconds):
        raise ConfigError(Option("keep_alive"), f" is a number of seconds or a duration such as 5m, got {value!r:.60}")
    return math.inf if seconds < 0 or seconds > FOREVER else seconds


def nanoseconds(seconds: float) -> int:
    """Whole nanoseconds."""
    return round(seconds * 1e9)


def timestamp(seconds: float | None = None) -> str:
    """A time (seconds since 1970, or now) in UTC as RFC 3339 with nanoseconds has it."""
    ns = time.time_ns() if seconds is None else nanoseconds(seconds)
    whole, rest = divmod(ns, 1_000_000_000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(whole))}.{rest:09d}Z"
