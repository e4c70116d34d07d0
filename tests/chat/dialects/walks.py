"""Random answers that a grammar allows, over a vocabulary of bytes and a few control tokens."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import numpy as np
from llguidance import LLMatcher, LLTokenizer
from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask

END = "<end of answer>"
ANY_TEXT = 80
TAKEN = frozenset(b'"}]\n<\\{,')


class Vocabulary:
    """Every byte is a token, and each of the control tokens; text never matches these."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, control_tokens: list[str]) -> None:
        self.tokens = [bytes([byte]) for byte in range(256)]
        self.tokens += [token.encode() for token in (END, *control_tokens)]
        self.eos_token_id = 256
        self.special_token_ids = list(range(256, len(self.tokens)))
        self.control_tokens: Mapping[str, int] = {token: 257 + i for i, token in enumerate(control_tokens)}
        self.llguidance = LLTokenizer(self)

    def __call__(self, text: str | bytes) -> list[int]:
        return list(text.encode() if isinstance(text, str) else text)

    def tokenize(self, text: str) -> list[int]:
        """Ids of a text in which control tokens are parsed."""
        ids: list[int] = []
        while text:
            token = max((token for token in self.control_tokens if text.startswith(token)), key=len, default=None)
            ids += [self.control_tokens[token]] if token else list(text[0].encode())
            text = text[len(token or text[0]) :]
        return ids


def matcher(vocabulary: Vocabulary, grammar: str) -> LLMatcher:
    found = LLMatcher(vocabulary.llguidance, LLMatcher.grammar_from_lark(grammar), log_level=0)
    assert not found.get_error(), f"{found.get_error()}\n{grammar}"
    return found


def accepts(vocabulary: Vocabulary, grammar: str, text: str) -> bool:
    """Whether the text is an answer that the grammar allows."""
    found = matcher(vocabulary, grammar)
    ids = vocabulary.tokenize(text)
    return bool(found.validate_tokens(ids) == len(ids) and found.consume_tokens(ids) and found.is_accepting())


def walk(vocabulary: Vocabulary, grammar: str, seed: int, ends: Sequence[str] = (), longest: int = 3000) -> str | None:
    """A random answer; None for one that became too long. Where nearly any text may come, often one of `ends` does."""
    rng = random.Random(seed)
    found = matcher(vocabulary, grammar)
    mask = allocate_token_bitmask(1, len(vocabulary.tokens))
    ids: list[int] = []
    while len(ids) < longest:
        fill_next_token_bitmask(found, mask)
        allowed = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")[: len(vocabulary.tokens)])
        token = _choose(rng, [int(i) for i in allowed])
        if token == vocabulary.eos_token_id:
            return b"".join(vocabulary.tokens[i] for i in ids).decode()
        if len(allowed) > ANY_TEXT and ends and rng.random() < 0.3:
            end = vocabulary.tokenize(rng.choice(ends))
            if found.validate_tokens(end) == len(end):
                ids += end
                assert found.consume_tokens(end), found.get_error()
                continue
        ids.append(token)
        assert found.consume_token(token), found.get_error()
    return None


def _choose(rng: random.Random, allowed: list[int]) -> int:
    """One of the tokens: often a control token or the end, or a quote, a bracket or a line break."""
    for chosen in ([i for i in allowed if i >= 256], [i for i in allowed if i in TAKEN]):
        if chosen and rng.random() < 0.4:
            return rng.choice(chosen)
    return rng.choice(allowed)
