"""The inputs of a session without its last tokens."""

from __future__ import annotations

from ollama_engine.errors import ConfigError
from ollama_engine.runner.request.inputs import Inputs, ceil_cut, floor_cut
from ollama_engine.runner.request.options import whole

__all__ = ["counted", "without_last"]


def without_last(inputs: Inputs, n: int) -> Inputs:
    """`inputs` without the last `n`. Raises ConfigError where there are fewer, or where that would cut an image."""
    had = len(inputs)
    if isinstance(n, int) and n > had:
        raise ConfigError(f"the session has only {counted(had)}, {n} cannot be dropped")
    left = had - whole("n", n, 0, had)
    begin, end = floor_cut(left, inputs.groups), ceil_cut(left, inputs.groups)
    if begin != left:
        raise ConfigError(
            f"dropping the last {n} tokens would cut through an image (tokens {begin} to {end}); "
            f"drop {had - begin} or {had - end}"
        )
    return inputs.part(0, left)


def counted(n: int) -> str:
    """A number of tokens in words."""
    return f"{n} token{'' if n == 1 else 's'}"
