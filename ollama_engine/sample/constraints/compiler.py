"""GrammarCompiler: from a format to a constraint; what was compiled is kept for requests that ask for the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from threading import Lock
from typing import TYPE_CHECKING, Any

from ollama_engine.errors import GrammarError
from ollama_engine.sample.constraints.answer import Reading
from ollama_engine.sample.constraints.locate import located
from ollama_engine.sample.constraints.matcher import GrammarConstraint, MaskMaker
from ollama_engine.sample.constraints.source import Source, read_format, schema_grammar
from ollama_engine.sample.constraints.vocabulary import TextTokenizer, make_tokenizer

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

__all__ = ["GrammarCompiler"]


class GrammarCompiler:
    """Compiles formats for one vocabulary, in the threads of callers."""

    def __init__(self, tokenizer: TextTokenizer, n_vocab: int) -> None:
        self._text_tokenizer = tokenizer
        self._n_vocab = n_vocab
        self._tokenizer: LLTokenizer | None = None
        self._making = Lock()
        self.maker = MaskMaker()

    def constraint(self, given: object, answered: Sequence[int] = ()) -> GrammarConstraint:
        """A constraint for an answer in this format, of which the tokens `answered` have come already.

        Raises ConfigError for what is no format, GrammarError for one that cannot be compiled.
        """
        source = read_format(given)
        reading = Reading(source.read, tuple(answered), self._text_tokenizer)
        return GrammarConstraint(self._matcher(source), self._n_vocab, self.maker, reading)

    def _matcher(self, source: Source) -> LLMatcher:
        from llguidance import LLMatcher  # noqa: PLC0415 (most requests ask for no format)

        matcher = LLMatcher(self._ll_tokenizer(), source.text, log_level=0)
        if matcher.is_error():
            if source.schema is not None:
                raise located(source.schema, _refusal)
            raise GrammarError(f"the grammar cannot be used: {matcher.get_error()[:500]}")
        return matcher

    def _ll_tokenizer(self) -> LLTokenizer:
        with self._making:
            if self._tokenizer is None:
                self._tokenizer = make_tokenizer(self._text_tokenizer, self._n_vocab)
            return self._tokenizer


def _refusal(schema: Mapping[str, Any]) -> str:
    """What the compiler says against a schema."""
    from llguidance import LLMatcher, LLTokenizer  # noqa: PLC0415

    matcher = LLMatcher(LLTokenizer("byte"), schema_grammar(schema), log_level=0)
    return str(matcher.get_error()) if matcher.is_error() else ""
