"""AnswerFolder: the answers that all processes of a job have so far, each process in a file of its own."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from ollama_engine.errors import ConfigError, Option
from ollama_engine.runner.bulk.answer import BatchAnswer
from ollama_engine.runner.bulk.checkpoint import Checkpoint, check_head, whole_lines

__all__ = ["AnswerFolder"]


class AnswerFolder:
    """Answers by the keys of their prompts.

    A process writes its own file, and reads those of the others whenever it looks for keys: a batch that a killed
    process had half done goes on in another. In memory are places of answers, about 200 bytes for each.

    Args:
        folder: shared by all processes of the job; made where it does not exist.
        job: what answers depend on; a folder of another job raises ConfigError when it is looked into.
    """

    def __init__(self, folder: str | os.PathLike[str], job: str) -> None:
        self.path = Path(folder)
        self.path.mkdir(parents=True, exist_ok=True)
        self._job = job
        self._own = Checkpoint(self.path / f"{os.uname().nodename}-{os.getpid()}-{os.urandom(4).hex()}.jsonl", job)
        self._read: dict[Path, int] = {}
        self._places: dict[int | str, tuple[Path, int]] = {}

    def find(self, keys: Sequence[int | str]) -> dict[int | str, tuple[BatchAnswer, str]]:
        """The answers that there are to prompts of these keys, each with the digest of its prompt.

        Raises OSError; ConfigError for a file of another job, or one that is damaged.
        """
        self._look_around()
        return {key: self._answer(*self._places[key]) for key in keys if key in self._places}

    def _look_around(self) -> None:
        for path in self.path.glob("*.jsonl"):
            start = self._read.get(path, 0)
            if path.stat().st_size == start:
                continue
            with open(path, "rb") as file:
                for place, line in whole_lines(file, start):
                    if place == 0:
                        check_head(line, path, self._job)
                    else:
                        self._places.setdefault(self._parsed(line, path)[0].key, (path, place))
                    self._read[path] = place + len(line)

    def _answer(self, path: Path, place: int) -> tuple[BatchAnswer, str]:
        with open(path, "rb") as file:
            file.seek(place)
            return self._parsed(file.readline(), path)

    def _parsed(self, line: bytes, path: Path) -> tuple[BatchAnswer, str]:
        try:
            return BatchAnswer.read(line)
        except ValueError as error:
            raise ConfigError(Option("checkpoint"), f" {str(path)!r} is damaged: {error}") from None

    def add(self, answer: BatchAnswer, digest: str) -> None:
        """Keep an answer: it is there when this returns, whatever becomes of this process."""
        self._own.add(answer, digest)

    def close(self) -> None:
        """Close the file of this process. Safe to call twice."""
        self._own.close()
