"""Finds the special tokens of a model: their ids, whether text gets them added, and all that end a generation.

Four files speak of them: tokenizer_config.json and special_tokens_map.json by text, config.json and
generation_config.json by id. The first that names one counts; of the ends all are kept. The last one also says which
tokens are never to be sampled.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from ollama_engine.convert.late_warnings import warn
from ollama_engine.convert.source.folder import Config, ModelFolder
from ollama_engine.convert.vocab.tokens import TokenTable

__all__ = ["add_flags", "special_keys"]

logger = logging.getLogger(__name__)

KEYS = {
    "bos": "bos_token_id", "eos": "eos_token_id", "unk": "unknown_token_id", "sep": "seperator_token_id",
    "pad": "padding_token_id", "cls": "cls_token_id", "mask": "mask_token_id",
}  # fmt: skip
"""Names of Hugging Face -> keys below `tokenizer.ggml.`; "seperator" is how GGUF spells it."""

TURN_ENDS = ("<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<turn|>")
MESSAGE_ENDS = ("<|eom_id|>",)


def special_keys(
    folder: ModelFolder, config: Config, table: TokenTable, tokenizer: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Keys below `tokenizer.ggml.` for all special tokens that the files name.

    A token that `tokenizer` puts behind every text is the first end, which is the one that GGUF's readers can add:
    Qwen3-Embedding's is not the one that tokenizer_config.json names. Ends beyond the first are stored as llama.cpp
    knows them (eot, eom), and all together as `eos_token_ids`, where Ollama has them and our tokenizer looks for them.
    """
    ids = {text: id_ for id_, text in enumerate(table.texts)}
    named = _by_text(folder, ids)
    appended = ids.get(_appended(tokenizer) or "")
    if appended is not None and appended not in named.get("sep", []):
        named["eos"] = [appended, *named.get("eos", [])]
    generation = folder.json("generation_config.json") or {}
    keys: dict[str, Any] = {}
    for name, key in KEYS.items():
        of_files = (_ids(source.get(f"{name}_token_id")) for source in (config.values, generation))
        token_ids = _inside([*named.get(name, []), *(id_ for ids_ in of_files for id_ in ids_)], name, len(table.texts))
        if token_ids:
            keys[key] = token_ids[0]
        if name == "eos" and len(token_ids) > 1:
            keys |= _more_ends(token_ids, table.texts)
    if banned := _inside(_ids(generation.get("suppress_tokens")), "suppress", len(table.texts)):
        keys["suppress_tokens"] = banned
    # What encoders put around a text, where llama.cpp looks for it.
    for name, other in (("bos", "cls"), ("eos", "sep")):
        if KEYS[name] not in keys and KEYS[other] in keys:
            keys[KEYS[name]] = keys[KEYS[other]]
    return keys


def _more_ends(ends: list[int], texts: list[str]) -> dict[str, Any]:
    keys: dict[str, Any] = {"eos_token_ids": ends}
    for key, known in (("eot_token_id", TURN_ENDS), ("eom_token_id", MESSAGE_ENDS)):
        of_kind = [id_ for id_ in ends[1:] if texts[id_] in known]
        if of_kind:
            keys[key] = of_kind[0]
    return keys


def _by_text(folder: ModelFolder, ids: Mapping[str, int]) -> dict[str, list[int]]:
    """Ids of the tokens that the files name by their text."""
    ids_by_name: dict[str, list[int]] = {}
    for file in ("tokenizer_config.json", "special_tokens_map.json"):
        entries = folder.json(file) or {}
        for name in KEYS:
            entry = entries.get(f"{name}_token")
            text = entry.get("content") if isinstance(entry, dict) else entry
            if isinstance(text, str) and text in ids:
                ids_by_name.setdefault(name, []).append(ids[text])
            elif isinstance(text, str):
                warn(logger, "%s: %s_token is %r, which is no token", folder.path / file, name, text)
    return ids_by_name


def _ids(value: Any) -> list[int]:
    values = value if isinstance(value, list) else [value]
    return [id_ for id_ in values if type(id_) is int]


def _inside(ids: Iterable[int], name: str, n_vocab: int) -> list[int]:
    """Each id once, in order. -1 and the like stand for "none"."""
    inside = []
    for id_ in dict.fromkeys(ids):
        if 0 <= id_ < n_vocab:
            inside.append(id_)
        elif id_ >= n_vocab:
            warn(logger, "%s_token_id %d is outside of the %d tokens; it is left out", name, id_, n_vocab)
    return inside


# -- what is added to a text -------------------------------------------------------------------------------------------


def add_flags(
    folder: ModelFolder, tokenizer: Mapping[str, Any] | None, keys: Mapping[str, Any], texts: list[str]
) -> dict[str, bool]:
    """`add_bos_token`, `add_eos_token` and `add_sep_token`, where the files say them.

    The post-processor of tokenizer.json is what really adds them, so it counts before tokenizer_config.json.
    """
    config = folder.json("tokenizer_config.json") or {}
    flags = {f"add_{k}_token": config[f"add_{k}_token"] for k in ("bos", "eos", "sep")
             if isinstance(config.get(f"add_{k}_token"), bool)}  # fmt: skip
    if tokenizer is not None and "post_processor" in tokenizer:
        flags |= _of_post_processor(tokenizer["post_processor"], keys, texts)
    return flags


def _of_post_processor(spec: Any, keys: Mapping[str, Any], texts: list[str]) -> dict[str, bool]:
    flags = {"add_bos_token": False, "add_eos_token": False}
    for part in (spec or {}).get("processors") or [spec or {}]:
        if part.get("type") in ("RobertaProcessing", "BertProcessing"):
            flags = dict.fromkeys(("add_bos_token", "add_eos_token", "add_sep_token"), True)
        if part.get("type") == "TemplateProcessing":
            single = [next(iter(step.items())) for step in part.get("single") or []]
            first, last = _special_at(single, 0), _special_at(single, -1)
            flags["add_bos_token"] = _is(first, keys, texts, "bos_token_id", "cls_token_id")
            flags["add_eos_token"] = _is(last, keys, texts, "eos_token_id", "seperator_token_id")
            if flags["add_bos_token"] and _is(first, keys, texts, "cls_token_id") and flags["add_eos_token"]:
                flags["add_sep_token"] = True
    return flags


def _appended(tokenizer: Mapping[str, Any] | None) -> str | None:
    """The token that the post-processor puts behind a text, as `_of_post_processor` reads it."""
    spec = (tokenizer or {}).get("post_processor") or {}
    texts = [
        _special_at([next(iter(step.items())) for step in part.get("single") or []], -1)
        for part in spec.get("processors") or [spec]
        if part.get("type") == "TemplateProcessing"
    ]
    return texts[-1] if texts else None


def _special_at(template: list[tuple[str, Any]], place: int) -> str | None:
    if len(template) < 2 or template[place][0] != "SpecialToken":
        return None
    return str(template[place][1].get("id"))


def _is(text: str | None, keys: Mapping[str, Any], texts: list[str], *names: str) -> bool:
    return text is not None and any(name in keys and texts[keys[name]] == text for name in names)
