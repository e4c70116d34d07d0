"""Lines of the log: with the time, for a server, and as objects of JSON, for programs."""

from __future__ import annotations

import dataclasses
import json
import logging
import time
from collections.abc import Mapping
from typing import Any

__all__ = ["JsonFormatter", "LineFormatter"]

RESERVED = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
"""Attributes that every record has. All others are fields that `extra` gave it."""


class LineFormatter(logging.Formatter):
    """Writes "2026-01-31T12:00:00.000Z INFO message"."""

    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03dZ"

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s")
        self.converter = time.gmtime


class JsonFormatter(LineFormatter):
    """Writes one object a line: time, level, logger, message, the fields of `extra`, and an exception's traceback."""

    def format(self, record: logging.LogRecord) -> str:
        fields = {name: plain(value) for name, value in vars(record).items() if name not in RESERVED}
        line: dict[str, Any] = {
            "time": self.formatTime(record), "level": record.levelname.lower(), "logger": record.name,
            "message": record.getMessage(), **fields,
        }  # fmt: skip
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            line["stack"] = self.formatStack(record.stack_info)
        return json.dumps(line)  # ASCII: a line break of Unicode in a text is none of the log


def plain(value: Any) -> Any:
    """A value as JSON has it: dataclasses by their fields, without those that their repr leaves out."""
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, float):
        return value if value - value == 0 else str(value)  # JSON has neither NaN nor infinity
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value) if field.repr}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item) for item in value]
    return str(value)
