"""BatchGenerator: answers to the rows of a Ray Data set, or of any batches of columns. It needs no Ray itself."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Any

import numpy as np

from ollama_engine.engine import Engine
from ollama_engine.errors import ConfigError, Option
from ollama_engine.ray.answer_folder import AnswerFolder
from ollama_engine.runner.bulk.answer import BatchAnswer, prompt_digest
from ollama_engine.runner.bulk.answering import Answering, OnError, answered, job_of
from ollama_engine.sample import SamplingParams

__all__ = ["BatchGenerator"]

_DEFAULT_PARAMS = SamplingParams()

Batch = Mapping[str, Any]
"""Columns by their names, each a numpy array or list with a value for each row."""


class BatchGenerator:
    """For `Dataset.map_batches`: each process of a job has one, which loads the model once.

        rows.map_batches(
            BatchGenerator, fn_constructor_args=["model.gguf"], compute=ray.data.ActorPoolStrategy(size=2),
            batch_size=1024,
        )

    Called with a batch, it returns it with the columns "answer", "finish_reason", "prompt_tokens",
    "completion_tokens", and with on_error="keep" "error" ("" where there is none).

    With `checkpoint` and `id_column`, an answer is kept in the folder before the batch is returned. The same job, run
    again after it was killed, takes from there what it has answered, and computes the rest.

    Args:
        model: path of a GGUF file, on every node.
        params: how tokens are chosen.
        prompt_column: of texts, token ids, or lists of messages.
        answer_column: of the answers' texts.
        id_column: of numbers or texts, different for each row.
        checkpoint: folder that all nodes share.
        on_error: "raise", or "keep": a prompt that the model cannot take has an empty answer and an error.
        engine: options of `Engine` ("num_ctx", "parallel", "threads" ...).
        options: of each request, as `Engine.map_batches` takes them.

    Raises what `Engine` raises; ConfigError for a checkpoint without ids, or one of another job.
    """

    def __init__(
        self, model: str | os.PathLike[str], params: SamplingParams = _DEFAULT_PARAMS, *,
        prompt_column: str = "prompt", answer_column: str = "answer", id_column: str | None = None,
        checkpoint: str | os.PathLike[str] | None = None, on_error: OnError = "raise",
        engine: Mapping[str, Any] | None = None, options: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        if checkpoint is not None and id_column is None:
            raise ConfigError(
                Option("checkpoint"), " needs to know rows again: name a column that differs in each as ",
                Option("id_column"),
            )  # fmt: skip
        self._prompts, self._answers, self._ids = prompt_column, answer_column, id_column
        self._engine = Engine(model, **(engine or {}))
        engine_of_any_kind: Any = self._engine  # its keyword arguments have types of their own
        self._how = Answering(engine_of_any_kind, self._engine.config.parallel, params, options or {}, on_error)
        job = job_of(os.path.basename(model), self._how)
        self._kept = None if checkpoint is None else AnswerFolder(checkpoint, job)

    def __call__(self, batch: Batch) -> dict[str, Any]:
        """The batch with the answers' columns. Raises as `Engine.map_batches`; ConfigError for a missing column."""
        prompts = [_plain(prompt) for prompt in self._column(batch, self._prompts)]
        keys: list[int | str] = [*range(len(prompts))] if self._ids is None else self._keys(batch, self._ids)
        answers = self._kept_answers(keys, prompts)
        missing = [(place, prompts[place]) for place in range(len(prompts)) if place not in answers]
        with closing(_iterator(answered(self._how, missing))) as computed:
            for answer in computed:
                place = int(answer.key)
                if self._kept is not None:
                    kept = BatchAnswer(
                        keys[place], answer.text, answer.finish_reason, answer.prompt_tokens, answer.completion_tokens,
                        answer.error,
                    )  # fmt: skip
                    self._kept.add(kept, prompt_digest(prompts[place]))
                answers[place] = answer
        return {**batch, **self._columns([answers[place] for place in range(len(prompts))])}

    def _keys(self, batch: Batch, column: str) -> list[int | str]:
        """The rows' ids. Raises ConfigError where two are the same: one's answer would be taken for the other's."""
        keys = [_key(key) for key in self._column(batch, column)]
        if len(set(keys)) < len(keys):
            key, times = Counter(keys).most_common(1)[0]
            raise ConfigError(Option("id_column"), f" {column!r} has {key!r} in {times} rows of a batch",
                              advice=["name a column that differs in each row"])  # fmt: skip
        return keys

    def _column(self, batch: Batch, name: str) -> Any:
        if name not in batch:
            raise ConfigError(f"there is no column {name!r}; there are {', '.join(map(repr, batch))}")
        return batch[name]

    def _kept_answers(self, keys: list[int | str], prompts: list[Any]) -> dict[int, BatchAnswer]:
        """By place in the batch. Raises ConfigError where a key was that of another prompt."""
        if self._kept is None:
            return {}
        kept = self._kept.find(keys)
        answers = {place: kept[key] for place, key in enumerate(keys) if key in kept}
        for place, (_, digest) in answers.items():
            if prompt_digest(prompts[place]) != digest:
                raise ConfigError(
                    Option("checkpoint"), f" {str(self._kept.path)!r} has the answer to another prompt with the id "
                    f"{keys[place]!r}", advice=["name a new folder"],
                )  # fmt: skip
        return {place: answer for place, (answer, _) in answers.items()}

    def _columns(self, answers: list[BatchAnswer]) -> dict[str, Any]:
        columns: dict[str, Any] = {
            self._answers: np.array([answer.text for answer in answers], object),
            "finish_reason": np.array([answer.finish_reason for answer in answers], object),
            "prompt_tokens": np.array([answer.prompt_tokens for answer in answers], np.int64),
            "completion_tokens": np.array([answer.completion_tokens for answer in answers], np.int64),
        }
        if self._how.on_error == "keep":
            columns["error"] = np.array([answer.error or "" for answer in answers], object)
        return columns

    def close(self) -> None:
        """Free the model, and close the file of answers. Safe to call twice."""
        self._engine.close()
        if self._kept is not None:
            self._kept.close()


def _iterator(answers: Iterator[BatchAnswer]) -> Any:
    return answers


def _plain(prompt: Any) -> Any:
    """A cell of a column as a prompt: Ray Data makes arrays of lists, of dicts too."""
    return prompt.tolist() if isinstance(prompt, np.ndarray) else str(prompt) if isinstance(prompt, np.str_) else prompt


def _key(key: Any) -> int | str:
    plain: int | str = key.item() if isinstance(key, np.generic) else key
    if isinstance(plain, bool) or not isinstance(plain, (int, str)):
        raise ConfigError(Option("id_column"), f" has whole numbers or texts, got {type(plain).__name__}")
    return plain
