"""Checkpoint: the answers that a job has so far, in a file that grows by one line for each.

The first line says what the job is. A process that is killed leaves whole lines and at most one that is not, which is
cut off when the file is opened to write. One process writes a file at a time.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from ollama_engine.closing import Closing
from ollama_engine.errors import ConfigError, EngineBusyError, Option
from ollama_engine.home_path import at_home
from ollama_engine.runner.bulk.answer import BatchAnswer

__all__ = ["Checkpoint", "whole_lines"]

MARK = "ollama_engine_answers"
VERSION = 1


class Checkpoint(Closing):
    """An open checkpoint, new or one to go on with.

    Args:
        path: path of the file.
        job: identity of its answers: model, parameters, options.

    Raises OSError; ConfigError for a folder, a file that is no checkpoint, or one of another job; EngineBusyError for
    one that another process writes.
    """

    def __init__(self, path: str | os.PathLike[str], job: str) -> None:
        if not isinstance(path, (str, os.PathLike)):
            raise ConfigError(Option("checkpoint"), f" is the path of a file, got {path!r}")
        self.path = Path(at_home(path))
        if self.path.is_dir():
            raise ConfigError(Option("checkpoint"), f" is a file, and {str(path)!r} is a folder",
                              advice=["name a file in it"])  # fmt: skip
        self._file: BinaryIO = open(self.path, "a+b")  # noqa: SIM115 (closed by `close`)
        try:
            _lock(self._file, self.path)
            self._open(job)
        except BaseException:
            self._file.close()
            raise

    def _open(self, job: str) -> None:
        self._file.seek(0)
        head = self._file.readline()
        if not head.endswith(b"\n") and json.dumps({MARK: VERSION})[:-1].encode().startswith(head[:20]):
            self._file.truncate(0)  # new, or killed in its first line
            self.write(json.dumps({MARK: VERSION, "job": job}).encode() + b"\n")
            self._begin = self._file.seek(0, os.SEEK_END)
        else:
            check_head(head, self.path, job)
            self._begin = len(head)
        self._end = _end_of_lines(self._file)
        self._file.truncate(self._end)

    def answers(self) -> Iterator[tuple[BatchAnswer, str]]:
        """The answers that were there when it was opened, in their order, each with the digest of its prompt.

        Raises ConfigError for a line that is none.
        """
        with open(self.path, "rb") as file:
            file.seek(self._begin)
            while file.tell() < self._end:
                try:
                    yield BatchAnswer.read(file.readline())
                except ValueError as error:
                    raise ConfigError(
                        Option("checkpoint"), f" {str(self.path)!r} is damaged: {error}",
                        advice=["take that line and all behind it out", "name a new file"],
                    ) from None  # fmt: skip

    def add(self, answer: BatchAnswer, digest: str) -> None:
        """Keep an answer: it is there when this returns, whatever becomes of this process."""
        self.write(answer.line(digest))

    def write(self, line: bytes) -> None:
        """Append a line. Raises OSError where the disk is full; a part of the line is cut off next time."""
        self._file.write(line)
        self._file.flush()

    def close(self) -> None:
        """Close the file, on the disk. Safe to call twice."""
        if not self._file.closed:
            os.fsync(self._file.fileno())
            self._file.close()


def check_head(head: bytes, path: Path, job: str) -> None:
    """Raise ConfigError for a first line that is not that of this job's checkpoints."""
    try:
        fields = json.loads(head)
        stored_job = fields["job"] if fields[MARK] == VERSION else None
    except (ValueError, KeyError, TypeError):
        stored_job = None
    if stored_job is None:
        raise ConfigError(Option("checkpoint"), f" {str(path)!r} is a file of another kind", advice=["name a new file"])
    if stored_job != job:
        raise ConfigError(
            Option("checkpoint"), f" {str(path)!r} has answers of another job: {stored_job}, and this is {job}",
            advice=["name a new file"],
        )  # fmt: skip


def whole_lines(file: BinaryIO, start: int) -> Iterator[tuple[int, bytes]]:
    """Where each line begins from `start` on, and the line; one that is still being written is left out."""
    file.seek(start)
    for line in file:
        if not line.endswith(b"\n"):
            return
        yield start, line
        start += len(line)


def _end_of_lines(file: BinaryIO) -> int:
    """Where the last whole line ends."""
    end = file.seek(0, os.SEEK_END)
    while end:
        start = max(0, end - (1 << 16))
        file.seek(start)
        found = file.read(end - start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end = start
    return 0


def _lock(file: BinaryIO, path: Path) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            raise EngineBusyError(
                f"another process, or another iterator of this one, writes the checkpoint {str(path)!r}",
                advice=["wait until it has ended", "name another file"],
            ) from None
        # A file system without locks: two processes would still append whole lines.
