"""Whether a format takes a text: every way, by a vocabulary of bytes."""

from __future__ import annotations

from llguidance import LLMatcher, LLTokenizer

from ollama_engine.sample.constraints.compiler import compile_source
from ollama_engine.sample.constraints.source import read_format

BYTES = LLTokenizer("byte")


def matcher(given: object) -> LLMatcher:
    """At the beginning of a format's grammar. Raises as a request with this format does."""
    return compile_source(read_format(given), BYTES)


def accepts(begun: LLMatcher, text: str) -> bool:
    """Whether a whole answer may be this text."""
    data = list(text.encode("utf-8", "surrogatepass"))
    copy = begun.deep_copy()
    return copy.try_consume_tokens(data) == len(data) and copy.is_accepting()
