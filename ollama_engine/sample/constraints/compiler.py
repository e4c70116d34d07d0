"""GrammarCompiler: from a format to a constraint; compiled grammars are kept for requests that ask for the same.

Imported with the first format that is asked for: llguidance takes 50 ms.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from threading import Lock
from typing import Any

from ollama_engine.errors import GrammarError, Option

try:
    from llguidance import LLExecutor, LLMatcher, LLTokenizer
except ModuleNotFoundError:  # it has no wheel for musl, nor for a Python without its lock; all else runs without it
    raise GrammarError(
        Option("format"), " needs the package llguidance, which is not installed", advice=["pip install llguidance"]
    ) from None

from ollama_engine.sample.constraints.answer import Reading
from ollama_engine.sample.constraints.locate import located
from ollama_engine.sample.constraints.matcher import GrammarConstraint, MaskMaker, short_message
from ollama_engine.sample.constraints.source import Source, format_key, read_format, schema_grammar
from ollama_engine.sample.constraints.vocabulary import ConstraintVocabulary, TextTokenizer, make_vocabulary
from ollama_engine.sample.constraints.writable import check_writable

__all__ = ["GrammarCompiler", "check_alone", "compile_source"]

MOST_ENTRIES = 256
"""Grammars that are kept compiled."""
MOST_CHARACTERS = 4 << 20
"""Characters of their texts together. Compiled grammars take some ten times as many bytes."""


@dataclass(frozen=True, slots=True)
class _Tools:
    """Objects that grammars of one vocabulary share."""

    vocabulary: ConstraintVocabulary
    maker: MaskMaker


@dataclass(frozen=True, slots=True)
class _Compiled:
    """A grammar, and a matcher at its beginning, of which requests get copies."""

    key: Hashable
    source: Source
    matcher: LLMatcher


class GrammarCompiler:
    """Compiles formats for one vocabulary, in the threads of callers; any number of them may.

    The least recently used of what was compiled goes first. A request gets a copy of its own.
    """

    def __init__(self, tokenizer: TextTokenizer, n_vocab: int) -> None:
        self._text_tokenizer = tokenizer
        self._n_vocab = n_vocab
        self._tools: _Tools | None = None
        self._making_tools = Lock()
        self._compiled: OrderedDict[Hashable, _Compiled] = OrderedDict()
        self._characters = 0
        self._choosing = Lock()

    def constraint(self, given: object, answered: Sequence[int] = ()) -> GrammarConstraint:
        """A constraint for an answer in this format, of which the tokens `answered` have come already.

        Raises ConfigError for what is no format, GrammarError for one that cannot be compiled.
        """
        tools = self._shared()
        compiled = self._find(given, tools.vocabulary)
        reading = Reading(compiled.source.read, tuple(answered), self._text_tokenizer if answered else None)
        anew = partial(self._compile_anew, compiled, tools.vocabulary.tokenizer)
        return GrammarConstraint(compiled.matcher.deep_copy(), self._n_vocab, tools.maker, reading, anew)

    def knows(self, given: object) -> bool:
        """Whether this format is compiled already, so that a constraint takes no time. Raises as `format_key` does."""
        key = format_key(given)
        with self._choosing:
            return key in self._compiled

    def _find(self, given: object, vocabulary: ConstraintVocabulary) -> _Compiled:
        """The compiled grammar of a format, made now or earlier."""
        key = format_key(given)
        with self._choosing:
            found = self._compiled.get(key)
            if found is not None:
                self._compiled.move_to_end(key)
                return found
        source = read_format(given)
        if source.schema is not None:
            check_writable(source.schema, vocabulary.writes)
        made = _Compiled(key, source, compile_source(source, vocabulary.tokenizer))
        with self._choosing:
            if key not in self._compiled:
                self._compiled[key] = made
                self._characters += len(source.text)
            while len(self._compiled) > MOST_ENTRIES or self._characters > MOST_CHARACTERS:
                _, old = self._compiled.popitem(last=False)
                self._characters -= len(old.source.text)
        return made

    def _compile_anew(self, used_up: _Compiled, tokenizer: LLTokenizer) -> LLMatcher:
        """A matcher with states of its own. The next request gets another: copies of `used_up` fail at once."""
        with self._choosing:
            if self._compiled.get(used_up.key) is used_up:
                del self._compiled[used_up.key]
                self._characters -= len(used_up.source.text)
        return compile_source(used_up.source, tokenizer)

    def _shared(self) -> _Tools:
        with self._making_tools:
            if self._tools is None:
                vocabulary = make_vocabulary(self._text_tokenizer, self._n_vocab)
                n_words = (vocabulary.tokenizer.vocab_size + 31) // 32
                self._tools = _Tools(vocabulary, MaskMaker(n_words, LLExecutor()))
            return self._tools


def compile_source(source: Source, tokenizer: LLTokenizer) -> LLMatcher:
    """A matcher at the beginning of the grammar. Raises GrammarError, with the place where it is in a JSON schema."""
    matcher = LLMatcher(tokenizer, source.text, log_level=0)
    if matcher.is_error():
        if source.schema is not None:
            raise located(source.schema, partial(_refusal, LLTokenizer("byte")))
        raise GrammarError(f"the grammar cannot be used: {short_message(matcher.get_error())}")
    return matcher


def check_alone(source: Source) -> None:
    """Raises GrammarError for a format that cannot be compiled by itself, in any vocabulary."""
    compile_source(source, LLTokenizer("byte"))


def _refusal(tokenizer: LLTokenizer, schema: Mapping[str, Any]) -> str:
    """The compiler's error message about a schema; "" for none."""
    matcher = LLMatcher(tokenizer, schema_grammar(schema), log_level=0)
    return short_message(matcher.get_error()) if matcher.is_error() else ""
