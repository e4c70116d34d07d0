"""Turns the tokenizer of a folder into `tokenizer.*` metadata, whatever kind it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from ollama_engine.convert.source.folder import Config, ModelFolder
from ollama_engine.convert.vocab.bpe import bpe_table, raw_bpe_table, scored_bpe_table
from ollama_engine.convert.vocab.chat import chat_templates
from ollama_engine.convert.vocab.pre import find_pre
from ollama_engine.convert.vocab.sentencepiece import read_sentencepiece, sentencepiece_table
from ollama_engine.convert.vocab.special import add_flags, special_keys
from ollama_engine.convert.vocab.tiktoken import KINDS, tiktoken_table
from ollama_engine.convert.vocab.tokens import TokenTable, added_tokens
from ollama_engine.convert.vocab.unigram import unigram_table
from ollama_engine.convert.vocab.wordpiece import read_vocab_txt, wordpiece_table
from ollama_engine.errors import ModelFormatError, UnsupportedModelError

__all__ = ["SENTENCEPIECE", "add_tokenizer"]

SENTENCEPIECE = ("tokenizer.model", "spiece.model")
"""Files of SentencePiece's models; the second is T5's name and SigLIP's."""


def add_tokenizer(
    writer: Any, folder: ModelFolder, config: Config, n_vocab: int, pre_names: Sequence[str],
    more_templates: Mapping[str, str] = MappingProxyType({}),
) -> None:  # fmt: skip
    """Add the tokenizer and the chat templates of a folder, and `more_templates`, to a GGUFWriter.

    `n_vocab` counts the rows of the token embedding: as many tokens are written. `pre_names` are the names of
    pre-tokenizers to prefer among those that behave alike. Raises ModelFormatError for broken files,
    UnsupportedModelError for a tokenizer that no GGUF tokenizer is like.
    """
    tokenizer = folder.json("tokenizer.json")
    table = _table(folder, tokenizer, n_vocab, pre_names)
    keys = special_keys(folder, config, table, tokenizer)
    writer.add_tokenizer_model(table.model)
    writer.add_tokenizer_pre(table.pre)
    writer.add_token_list([text.encode("utf-8", "surrogateescape") for text in table.texts])
    if table.scores is not None:
        writer.add_token_scores(table.scores)
    writer.add_token_types(table.types)
    if table.merges is not None:
        writer.add_token_merges(table.merges)
    flags = add_flags(folder, tokenizer, keys, table.texts)
    for name, value in {**keys, **flags, **table.flags}.items():
        _add(writer, f"tokenizer.ggml.{name}", value)
    _add_chat(writer, {**more_templates, **chat_templates(folder)})


def _table(
    folder: ModelFolder, tokenizer: Mapping[str, Any] | None, n_vocab: int, pre_names: Sequence[str]
) -> TokenTable:
    """tokenizer.model comes first: it has the scores that a tokenizer.json made of it has lost.

    Unigram has not lost them, and its ids need not be those of the tokenizer.model that it was made of (XLM-R).
    """
    data = next((data for file in SENTENCEPIECE if (data := folder.bytes(file)) is not None), None)
    if tokenizer is not None and (tokenizer.get("model") or {}).get("type") == "Unigram":
        data = None
    added = added_tokens(folder, tokenizer).values()
    if data is not None:
        table = sentencepiece_table(read_sentencepiece(data, str(folder.path)), added, n_vocab)
        # It wins, as in transformers, and in llama.cpp's converter for Llama, ERNIE 4.5 and InternLM 3.
        if (folder.json("tokenizer_config.json") or {}).get("add_prefix_space") is False:
            table.flags["add_space_prefix"] = False
        return table
    if tokenizer is not None:
        return _of_json(tokenizer, folder, n_vocab, pre_names)
    for ranks in KINDS:
        data = folder.bytes(ranks.file)
        if data is not None:
            return tiktoken_table(ranks, data, folder, added, pre_names, n_vocab)
    text = folder.text("vocab.txt")
    if text is not None:
        lowercase = (folder.json("tokenizer_config.json") or {}).get("do_lower_case", True)
        return wordpiece_table(read_vocab_txt(text), "##", added, {"type": "BertNormalizer", "lowercase": lowercase},
                               n_vocab)  # fmt: skip
    names = "tokenizer.json, tokenizer.model, spiece.model, tiktoken.model, hy.tiktoken or vocab.txt"
    raise ModelFormatError(f"{folder.path}: no {names}; the tokenizer is missing")


def _of_json(tokenizer: Mapping[str, Any], folder: ModelFolder, n_vocab: int, pre_names: Sequence[str]) -> TokenTable:
    home = str(folder.path / "tokenizer.json")
    model = tokenizer.get("model") or {}
    added = added_tokens(folder, tokenizer).values()
    kind = model.get("type") or ("BPE" if "merges" in model else "WordPiece" if "vocab" in model else None)
    if kind == "BPE" and model.get("byte_fallback"):
        made = raw_bpe_table if "gemma4" in pre_names else scored_bpe_table
        return made(tokenizer, added, n_vocab, home)
    if kind == "BPE":
        return bpe_table(model, added, find_pre(tokenizer, pre_names, home), n_vocab, home)
    if kind == "WordPiece":
        prefix = str(model.get("continuing_subword_prefix", "##"))
        return wordpiece_table(model["vocab"], prefix, added, tokenizer.get("normalizer"), n_vocab)
    if kind == "Unigram":
        return unigram_table(tokenizer, added, n_vocab, home)
    raise UnsupportedModelError(
        f"{home}: a tokenizer of type {kind!r} is not supported; supported: BPE, Unigram, WordPiece"
    )


def _add(writer: Any, key: str, value: Any) -> None:
    add: Callable[..., None] = writer.add_array
    if isinstance(value, bool):
        add = writer.add_bool
    elif isinstance(value, int):
        add = writer.add_uint32
    add(key, value)


def _add_chat(writer: Any, templates: Mapping[str, str]) -> None:
    if list(templates) == ["default"]:
        writer.add_chat_template(templates["default"])
    elif templates:
        writer.add_chat_template([{"name": name, "template": text} for name, text in templates.items()])
