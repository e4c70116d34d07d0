"""ScoreCall: the scores of a prompt's continuations, with one request for each path. LogitsCall: a prompt's logits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from ollama_engine.errors import ContextOverflowError, Option, TokenizerError
from ollama_engine.input import FloatArray
from ollama_engine.runner.core.input_processor import refuse_encoder
from ollama_engine.runner.core.new_requests import new_scoring
from ollama_engine.runner.core.submission import Submission
from ollama_engine.runner.core.text_room import TextRoom
from ollama_engine.runner.request.call import EngineCall
from ollama_engine.runner.request.inputs import Inputs
from ollama_engine.runner.request.options import RequestOptions
from ollama_engine.runner.request.preparing import Preparing
from ollama_engine.runner.request.prompts import Prompt, about_one, has_media, is_long
from ollama_engine.runner.request.results import Chunk, Result
from ollama_engine.runner.schedule.scoring import Scoring
from ollama_engine.runner.score.path_reader import PathReader
from ollama_engine.runner.score.paths import Tokens, plan_paths
from ollama_engine.runner.score.results import Score
from ollama_engine.runner.score.seam import Continuation, tokenize_pair
from ollama_engine.sample import Sampler, SamplingParams

__all__ = ["LogitsCall", "ScoreCall"]

_ANY_PARAMS = SamplingParams(temperature=0)


class ScoreCall(EngineCall[list[Score]]):
    """Scores of the continuations in their order. `name`: what the caller calls their list, None where one came."""

    def __init__(
        self, submission: Submission, prompt: Prompt, continuations: Sequence[Continuation], options: RequestOptions,
        name: str | None,
    ) -> None:  # fmt: skip
        super().__init__()
        self._submission = submission
        self._prompt = prompt
        self._given = continuations
        self._options = options
        self._name = name
        self._preparing = Preparing(self.cancel, options.timeout)

    @property
    def takes_long(self) -> bool:
        return has_media(self._prompt) or is_long([self._prompt, *cast("Sequence[Prompt]", self._given)])

    def hand_in(self) -> None:
        with self._submission.counting_refusals("scoring"):
            self._read()
        made: list[Scoring] = []
        n_prompt = len(self._inputs)
        leaders = {0, *(path.follows for path in self._planned.paths)}
        for path, reader in zip(self._planned.paths, self._readers, strict=True):
            follows = None if path.follows is None else made[path.follows]
            made.append(
                new_scoring(
                    self._submission.loaded, self._computed(path.tokens), self.channel(), reader, self._options,
                    follows=follows, shared=n_prompt + path.first - 1, kept=len(made) in leaders,
                )
            )  # fmt: skip
        for request in made:
            self._preparing.mark(request)
        if made:
            self._submission.thread.submit(*made)

    def _read(self) -> None:
        """Tokenize prompt and continuations, and plan what to compute."""
        loaded = self._submission.loaded
        self._submission.thread.check_open()
        refuse_encoder(loaded)
        pair = tokenize_pair(loaded, self._prompt, self._given, self._name, self._preparing.check)
        self._inputs = pair.inputs
        self._continuations = pair.continuations
        self._sampler = Sampler(_ANY_PARAMS, min(loaded.model.n_vocab, loaded.tokenizer.n_vocab))
        for number, tokens in enumerate(pair.continuations):
            with about_one(self._name, number):
                self._check(tokens)
        self._planned = plan_paths(pair.continuations)
        self._readers = [PathReader(path, len(pair.inputs), self._sampler) for path in self._planned.paths]

    def _check(self, tokens: Tokens) -> None:
        """Raise what is wrong with a continuation."""
        n, num_ctx = len(self._inputs) + len(tokens) - 1, self._submission.loaded.num_ctx
        if n > num_ctx:
            raise ContextOverflowError(
                f"prompt and continuation have {n} tokens to compute, but ", Option("num_ctx"), f" is {num_ctx}",
                advice=["shorten them", ("choose a larger ", Option("num_ctx"))],
            )  # fmt: skip
        if max(tokens) >= self._sampler.n_vocab:
            raise TokenizerError(
                f"the model has no logit for token {max(tokens)}, only for 0 to {self._sampler.n_vocab - 1}"
            )

    def _computed(self, tokens: Tokens) -> Inputs:
        """The last token is scored, and need not be computed."""
        return self._inputs.with_tokens(tokens[:-1])

    def value(self) -> list[Score]:
        return [self._score(tokens) for tokens in self._continuations]

    def _score(self, tokens: Tokens) -> Score:
        paths, nodes = self._planned
        rows = [self._readers[node.path].entries[node.depth - paths[node.path].first] for node in nodes[tokens]]
        entries = [row[token] for row, token in zip(rows, tokens, strict=True)]
        logprobs = tuple(entry.logprob for entry in entries)
        # A list, which `all` cannot leave half used: an interrupt as a generator is closed would be swallowed.
        are_best = [entry.is_best for entry in entries]
        return Score(sum(logprobs), tokens, logprobs, all(are_best))


class LogitsCall(EngineCall[FloatArray]):
    """The logits of every input of a prompt, float32 [n_inputs, n_vocab]."""

    def __init__(self, submission: Submission, prompt: Prompt) -> None:
        super().__init__()
        self._submission = submission
        self._prompt = prompt
        self._rows: FloatArray | None = None

    def hand_in(self) -> None:
        inputs = self._submission.inputs(
            self._prompt, several="logits takes one prompt at a time", room=TextRoom(self._submission.loaded.num_ctx)
        )
        self._submission.thread.submit(new_scoring(self._submission.loaded, inputs, self.channel()))

    def take(self, number: int, event: Chunk | Result) -> None:
        assert isinstance(event, Result)
        self._rows = cast(FloatArray, event.value)

    def value(self) -> FloatArray:
        assert self._rows is not None
        return self._rows
