"""The demo model's tokenizer: byte-level BPE, split as GGUF's `llama-bpe` splits, with the llama-3 special tokens."""

from __future__ import annotations

from collections.abc import Iterable

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from .documents import SPECIAL_TOKENS

LLAMA_BPE_SPLIT = "|".join(
    (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)",
        r"[^\r\n\p{L}\p{N}]?\p{L}+",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    )
)
"""What `tokenizer.ggml.pre = "llama-bpe"` stands for: contractions, words with the mark before them, and so on."""

BEGIN, END, *_, END_OF_TURN = SPECIAL_TOKENS


def train_tokenizer(texts: Iterable[str], n_vocab: int) -> Tokenizer:
    """Learn the merges from `texts`; the special tokens take the last ids of the `n_vocab`."""
    # A word that is a token needs no merges: the same rule that llama-bpe implies.
    tokenizer = Tokenizer(models.BPE(ignore_merges=True))
    split = pre_tokenizers.Split(Regex(LLAMA_BPE_SPLIT), behavior="isolated")
    bytes_as_text = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, bytes_as_text])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=n_vocab - len(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator((_without_specials(text) for text in texts), trainer)
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS])
    if tokenizer.get_vocab_size() != n_vocab:
        raise ValueError(
            f"wanted {n_vocab} tokens, got {tokenizer.get_vocab_size()}: give more text or a smaller vocabulary"
        )
    return tokenizer


def _without_specials(text: str) -> str:
    for token in SPECIAL_TOKENS:
        text = text.replace(token, "\n")
    return text


def weigh_tokens(tokenizer: Tokenizer, words: Iterable[str], weight: float) -> list[float]:
    """What each token counts for in the loss: `weight` for those that spell `words` after a space, 1 for all others."""
    weights = [1.0] * tokenizer.get_vocab_size()
    for encoding in tokenizer.encode_batch([f" {word}" for word in words]):
        for id_ in encoding.ids:
            weights[id_] = weight
    return weights


def encode_documents(tokenizer: Tokenizer, texts: list[str]) -> list[list[int]]:
    """Token ids of each document, begun and ended by their special tokens."""
    return [encoding.ids for encoding in tokenizer.encode_batch([f"{BEGIN}{text}{END}" for text in texts])]
