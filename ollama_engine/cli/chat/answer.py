"""Answers one prompt: streams the text to standard output; with --verbose, usage goes to standard error."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ollama_engine.errors import Option

if TYPE_CHECKING:
    from ollama_engine.engine import Engine
    from ollama_engine.runner.request.options import RequestOptions
    from ollama_engine.runner.request.results import Usage
    from ollama_engine.sample import SamplingParams

__all__ = ["Answerer", "report_end", "usage_text"]

NUM_CTX, SHIFT = Option("num_ctx"), Option("on_overflow", "shift")


class Answerer:
    """Prints the answers of one engine. `write` gives the spelling of an option for messages."""

    def __init__(
        self, engine: Engine, write: Callable[[Option], str | None] = str, *, verbose: bool = False, echo: bool = False
    ) -> None:
        self._engine = engine
        self._write_option = write
        self._verbose = verbose
        self._echo = echo

    def answer(
        self, prompt: str, params: SamplingParams, request_options: RequestOptions, images: Sequence[bytes] = ()
    ) -> None:
        """Stream the answer to standard output, with a line break at its end.

        KeyboardInterrupt cancels the request and propagates. Raises as `Engine.stream` does.
        """
        last = prompt[-1:] if self._echo else ""
        options = {field.name: getattr(request_options, field.name) for field in dataclasses.fields(request_options)}
        with self._engine.stream(prompt, params, images=images, **options) as chunks:
            try:
                if self._echo:
                    _write(prompt)
                for chunk in chunks:
                    _write(chunk.text)
                    last = chunk.text[-1:] or last
            finally:
                if last not in ("", "\n"):
                    _write("\n")
        assert chunk.usage is not None
        report_end(self._engine, chunk.finish_reason, chunk.usage, params, self._write_option, verbose=self._verbose)


def report_end(
    engine: Engine,
    finish_reason: str | None,
    usage: Usage,
    params: SamplingParams,
    write: Callable[[Option], str | None],
    *,
    verbose: bool,
) -> None:
    """Say on standard error that the context cut an answer off; with `verbose`, what the answer took."""
    if finish_reason == "length" and usage.completion_tokens != params.max_tokens:
        # No max_tokens asked for that.
        print(
            f"warning: the answer ends because the context is full ({write(NUM_CTX)} is {engine.config.num_ctx}); "
            f"choose a larger one, or let answers go on with {write(SHIFT)}",
            file=sys.stderr,
        )
    if verbose:
        print(f"\n{usage_text(usage)}\nended by {finish_reason}", file=sys.stderr)


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def usage_text(usage: Usage) -> str:
    """Tokens, seconds and tokens/s of prompt and answer, a line each, and how many guesses were right, if any.

    Computing the prompt gives the first token of the answer, so the answer's speed counts the tokens after it.
    """
    later = max(0, usage.completion_tokens - 1)
    cached = f", {usage.cached_tokens} of them cached" if usage.cached_tokens else ""
    lines = [
        _line("prompt", usage.prompt_tokens, usage.prompt_tokens, usage.prompt_seconds) + cached,
        _line("answer", usage.completion_tokens, later, usage.completion_seconds),
    ]
    if usage.drafted_tokens:
        lines.append(f"drafts  {usage.drafted_tokens:6d} tokens guessed, {usage.accepted_tokens} of them right")
    return "\n".join(lines)


def _line(name: str, tokens: int, timed: int, seconds: float) -> str:
    speed = f", {timed / seconds:8.1f} tokens/s" if timed and seconds > 0 else ""
    return f"{name}  {tokens:6d} tokens in {seconds:7.2f} s{speed}"
