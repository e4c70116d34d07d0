"""The log on standard error: how its lines are written, for people and for programs."""

from __future__ import annotations

import logging
import os

from ollama_engine.cli.errors import UsageError

__all__ = ["FORMATS", "FORMAT_VARIABLE", "ShortFormatter", "log_format", "log_formatter"]

FORMAT_VARIABLE = "OLLAMA_ENGINE_LOG_FORMAT"
FORMATS = ("text", "json")


def log_format() -> str:
    """One of FORMATS, as the environment says. Raises UsageError for another."""
    name = os.environ.get(FORMAT_VARIABLE, "") or "text"
    if name not in FORMATS:
        raise UsageError(f"{FORMAT_VARIABLE} is one of {', '.join(FORMATS)}, got {name!r:.40}")
    return name


def log_formatter(text: logging.Formatter) -> logging.Formatter:
    """The formatter that the environment asks for: `text`, or one object of JSON a line. Raises UsageError."""
    if log_format() == "text":
        return text
    from ollama_engine.cli.log_lines import JsonFormatter  # noqa: PLC0415 (json and dataclasses: few ask for it)

    return JsonFormatter()


class ShortFormatter(logging.Formatter):
    """Writes levels in lower case, as in `error: ...`."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        return f"{record.levelname.lower()}: {record.message}"
