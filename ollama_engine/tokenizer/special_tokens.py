"""Rules about known special tokens, by their text.

GGUF files from llama.cpp's converter name one end-of-generation id, and token types in vocabularies are often wrong.
These rules find the other ends of a turn and correct the types. The texts are facts of published vocabularies.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ollama_engine.tokenizer._texts import find_texts
from ollama_engine.tokenizer.metadata import Fields

__all__ = ["apply_text_rules", "find_known_texts", "guarded_tokens", "strip_rules"]

NORMAL, UNKNOWN, CONTROL, USER_DEFINED = 1, 2, 3, 4

# Generation ends at these whatever their type says; conversions that got the type wrong are common.
END_TEXTS = (
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>", "<end_of_turn>",
    "<|endoftext|>", "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<|end_of_text|>", "<end_of_utterance>",
    "<eos>", "<turn|>", "<|tool_response>", "<｜end▁of▁sentence｜>", "[e~[",
)  # fmt: skip

# Fill-in-the-middle tokens. Generation also ends at the padding, repository and file separators.
FIM_TEXTS: dict[str, tuple[str, ...]] = {
    "fim_pre": (
        "<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>", "<｜fim▁begin｜>", "<PRE>", "▁<PRE>", "<|code_prefix|>",
        "<|prefix|>",
    ),
    "fim_suf": (
        "<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>", "<｜fim▁hole｜>", "<SUF>", "▁<SUF>", "<|code_suffix|>",
        "<|suffix|>",
    ),
    "fim_mid": (
        "<|fim_middle|>", "<fim-middle>", "<fim_middle>", "<｜fim▁end｜>", "<MID>", "▁<MID>", "<|code_middle|>",
        "<|middle|>",
    ),
    "fim_pad": ("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"),
    "fim_rep": ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"),
    "fim_sep": ("<|file_sep|>",),
}  # fmt: skip
FIM_OLD_KEYS = {"fim_pre": "prefix", "fim_suf": "suffix", "fim_mid": "middle"}
FIM_ENDS = ("fim_pad", "fim_rep", "fim_sep")

# gpt-oss answers in channels. The chat layer reads these markers, so they are always part of the output.
RENDERED_TEXTS = ("<|channel|>", "<|message|>", "<|start|>", "<|constrain|>")

# Rules for single vocabularies name these as well.
OTHER_TEXTS = ("<s>", "</s>", "<unk>", "<mask>", "[MASK]", "<|plamo:eos|>")


def find_known_texts(texts: list[str]) -> dict[str, int]:
    """Ids of the tokens that these rules name. Of two tokens with equal text the later counts, as in llama.cpp."""
    known = {*END_TEXTS, *RENDERED_TEXTS, *OTHER_TEXTS, *(text for group in FIM_TEXTS.values() for text in group)}
    return find_texts(texts, known)


def apply_text_rules(
    fields: Fields, ids: Mapping[str, int], types: NDArray[np.uint8], eos_id: int | None
) -> frozenset[int]:
    """Corrects `types` in place and returns all end-of-generation ids."""
    n_vocab = len(types)
    ends = set(_fim_ends(fields, ids, types))
    for text in END_TEXTS:
        if text in ids:
            ends.add(ids[text])
            types[ids[text]] = CONTROL
    # A "</s>" of type normal is ordinary text, such as HTML that closes strike-through: it does not end generation.
    strike = ids.get("</s>")
    if strike is not None and (types[strike] != NORMAL or "token_type" not in fields):
        ends.add(strike)
        types[strike] = CONTROL
    for text in RENDERED_TEXTS:
        if text in ids:
            types[ids[text]] = USER_DEFINED
    if eos_id is not None:
        ends.add(eos_id)
    for kind in ("eos", "eot", "eom"):
        ends.update(fields.token_ids(f"{kind}_token_id", n_vocab))
        ends.update(fields.token_ids(f"{kind}_token_ids", n_vocab))
    _drop_inner_ends(ids, types, ends)
    return frozenset(ends)


def _fim_ends(fields: Fields, ids: Mapping[str, int], types: NDArray[np.uint8]) -> list[int]:
    ends = []
    for kind, texts in FIM_TEXTS.items():
        id_ = fields.token_id(f"{kind}_token_id", len(types))
        if id_ is None and kind in FIM_OLD_KEYS:
            id_ = fields.token_id(f"{FIM_OLD_KEYS[kind]}_token_id", len(types))
        if id_ is None:
            id_ = next((ids[text] for text in texts if text in ids), None)
            if id_ is not None:
                types[id_] = CONTROL
        if id_ is not None and kind in FIM_ENDS:
            ends.append(id_)
    return ends


def _drop_inner_ends(ids: Mapping[str, int], types: NDArray[np.uint8], ends: set[int]) -> None:
    """In harmony and solar-open, `<|end|>` ends a message but not the turn; Gemma 4 and PLaMo have a plain `</s>`."""

    def is_end(text: str) -> bool:
        return ids.get(text, -1) in ends

    call = is_end("<|call|>") or is_end("<|calls|>")
    if is_end("<|end|>") and call and (is_end("<|return|>") or is_end("<|flush|>")):
        ends.discard(ids["<|end|>"])
        types[ids["<|end|>"]] = USER_DEFINED
    if is_end("</s>") and (is_end("<|tool_response>") or is_end("<|plamo:eos|>")):
        ends.discard(ids["</s>"])
        types[ids["</s>"]] = NORMAL


def guarded_tokens(
    metadata: Mapping[str, Any], texts: list[str], types: NDArray[np.uint8], file_types: NDArray[np.uint8]
) -> frozenset[int]:
    """User-defined tokens that steer the model all the same, so that text which a user typed must not become them.

    Vocabularies mark tokens as user-defined for the sake of their output: <think>, <tool_call>, DeepSeek's <｜User｜>.
    They are taken for control tokens where the file says so (harmony's were made user-defined by the rules above),
    where they look like <|this|>, and where a chat template of the file writes them. Others, such as runs of spaces
    and <table>, are found in any text.
    """
    templates = [value for name, value in metadata.items() if name.startswith("tokenizer.chat_template")]
    source = "\n".join(value for value in templates if isinstance(value, str))

    def steers(id_: int) -> bool:
        text = texts[id_]
        if file_types[id_] == CONTROL or (text[:2] in ("<|", "<｜") and text[-2:] in ("|>", "｜>")):
            return True
        edges = text[0] + text[-1]
        return len(text) > 2 and not any(c.isalnum() or c.isspace() or c == "▁" for c in edges) and text in source

    return frozenset(id_ for id_ in map(int, np.flatnonzero(types == USER_DEFINED)) if steers(id_))


def strip_rules(
    metadata: Mapping[str, Any], pre: str, architecture: str, ids: Mapping[str, int], types: NDArray[np.uint8]
) -> tuple[frozenset[int], frozenset[int]]:
    """Special tokens that strip white space (before, after). GGUF does not store it; the model's name decides."""
    name = str(metadata.get("general.name", "")).lower()
    if any(s in pre for s in ("jina-v2-de", "jina-v2-es", "jina-v2-code")) or any(
        s in architecture for s in ("nomic-bert-moe", "jina-bert-v3")
    ):
        return _ids_of(ids, "<mask>"), frozenset()
    if "phi-3" in name or "phi3" in name:
        special = np.flatnonzero(np.isin(types, (UNKNOWN, CONTROL, USER_DEFINED)))
        right = frozenset(map(int, special)) | _ids_of(ids, "</s>")
        return frozenset(), right - _ids_of(ids, "<unk>", "<s>", "<|endoftext|>")
    if "modern-bert" in name:
        return _ids_of(ids, "[MASK]"), frozenset()
    return frozenset(), frozenset()


def _ids_of(ids: Mapping[str, int], *texts: str) -> frozenset[int]:
    return frozenset(ids[text] for text in texts if text in ids)
