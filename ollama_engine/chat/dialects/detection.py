"""Which dialect a model speaks, from its chat template and its metadata."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ollama_engine.architectures import ARCHITECTURES
from ollama_engine.chat.dialects.apertus import APERTUS
from ollama_engine.chat.dialects.base import Dialect
from ollama_engine.chat.dialects.command_r import COMMAND_R7B, COMMAND_R_PLUS
from ollama_engine.chat.dialects.deepseek import DEEPSEEK_V3, DEEPSEEK_V31
from ollama_engine.chat.dialects.functionary import FUNCTIONARY_V31, FUNCTIONARY_V32
from ollama_engine.chat.dialects.gemma import GEMMA
from ollama_engine.chat.dialects.gemma4 import GEMMA4
from ollama_engine.chat.dialects.gigachat import GIGACHAT
from ollama_engine.chat.dialects.glm import GLM, HUNYUAN3
from ollama_engine.chat.dialects.granite import GRANITE
from ollama_engine.chat.dialects.harmony import HARMONY
from ollama_engine.chat.dialects.hermes import HERMES
from ollama_engine.chat.dialects.invocations import DEEPSEEK_V32, MINIMAX_M2, SEED_OSS
from ollama_engine.chat.dialects.kimi import KIMI_K2, SOLAR
from ollama_engine.chat.dialects.kimi_k3 import KIMI_K3
from ollama_engine.chat.dialects.lfm2 import LFM2
from ollama_engine.chat.dialects.llama3 import LLAMA3
from ollama_engine.chat.dialects.minicpm5 import MINICPM5
from ollama_engine.chat.dialects.minimax_m3 import MINIMAX_M3
from ollama_engine.chat.dialects.mistral import MISTRAL, MISTRAL_TEKKEN
from ollama_engine.chat.dialects.muse import MUSE
from ollama_engine.chat.dialects.phi4 import PHI4
from ollama_engine.chat.dialects.plain_json import PLAIN_JSON
from ollama_engine.chat.dialects.plain_text import PLAIN_TEXT
from ollama_engine.chat.dialects.qwen3_coder import QWEN3_CODER
from ollama_engine.chat.dialects.smollm3 import SMOLLM3
from ollama_engine.chat.dialects.tagged_arrays import APRIEL, MINIMAX_M1, NEMOTRON_V2
from ollama_engine.errors import ConfigError, Option

__all__ = ["DIALECTS", "detect", "named"]

_SIGNS: tuple[tuple[Dialect, tuple[str, ...]], ...] = (
    (HARMONY, ("<|channel|>", "<|message|>")),
    (MUSE, ("<atem:function_calls>",)),
    (FUNCTIONARY_V32, (">>>all",)),
    (KIMI_K2, ("<|tool_calls_section_begin|>",)),
    (KIMI_K3, ("<|open|>", "<|end_of_msg|>")),
    (SOLAR, ("<|tool_call:begin|>",)),
    (COMMAND_R7B, ("<|START_ACTION|>",)),
    (COMMAND_R_PLUS, ("<|CHATBOT_TOKEN|>", "Action:")),
    (APERTUS, ("<|tools_prefix|>",)),
    (LFM2, ("<|tool_call_start|>",)),
    (LFM2, ("<|tool_list_start|>",)),
    (LFM2, ("List of tools: [",)),
    (GIGACHAT, ("<|role_sep|>", "<|message_sep|>")),
    (MINIMAX_M3, ("]<]minimax[>[",)),
    (MINIMAX_M2, ("<minimax:tool_call>",)),
    (SEED_OSS, ("<seed:tool_call>",)),
    (NEMOTRON_V2, ("<TOOLCALL>",)),
    (MINIMAX_M1, ("<tool_calls>", "<end_of_sentence>")),
    (APRIEL, ("<tool_calls>", "[BEGIN FINAL RESPONSE]")),
    (DEEPSEEK_V32, ("｜DSML｜",)),
    (DEEPSEEK_V3, ("<｜tool▁calls▁begin｜>", "```json")),
    (DEEPSEEK_V31, ("<｜tool▁calls▁begin｜>",)),
    (GEMMA4, ("<|tool_call>call:",)),
    (MINICPM5, ('<function name="', '<param name="')),
    (QWEN3_CODER, ("<tool_call>", "<function=", "<parameter=")),
    (FUNCTIONARY_V31, ("<function=", "</function>")),
    (HUNYUAN3, ("<tool_calls{}>", "<arg_key{}>")),
    (GLM, ("<arg_key>",)),
    (MISTRAL_TEKKEN, ("[TOOL_CALLS]", "[ARGS]")),
    (MISTRAL, ("[TOOL_CALLS]",)),
    (SMOLLM3, ("SmolLM", "/no_think")),
    (HERMES, ("<tool_call>",)),
    (GRANITE, ("<|tool_call|>", "<|start_of_role|>")),
    (PHI4, ("<|tool_call|>",)),
    (PHI4, ("functools[",)),
    (LLAMA3, ("<|start_header_id|>", '"parameters"')),
    (LLAMA3, ("<|python_tag|>",)),
    (GEMMA, ("<start_of_turn>",)),
)
"""Dialects and the texts that all stand in a template of theirs, or are control tokens; the first row decides."""

DIALECTS: Mapping[str, Dialect] = {
    dialect.name: dialect for dialect in (*(dialect for dialect, _ in _SIGNS), PLAIN_JSON, PLAIN_TEXT)
}
"""Every dialect by its name."""

# Texts that end the assistant's turn in one family of templates or another.
_CONTROL_TYPES = (3, 4)  # of GGUF's token types: control, user defined

_TURN_ENDS = {
    *(end for dialect in DIALECTS.values() for end in dialect.turn_ends),
    *("<|endoftext|>", "<|role_end|>", "<sep>", "</assistant>", "<|eot|>"),
}


def detect(template_source: str | None, metadata: Mapping[str, Any] | None = None) -> Dialect:
    """The dialect of a model.

    Its template decides by the markers in it. Where it has none, what the vocabulary's control tokens say decides, and
    then the architecture. Otherwise it is plain JSON with a template, and plain text without one.

    template_source: the template that is used.
    metadata: a GGUF file's.
    """
    source, metadata = template_source or "", metadata or {}
    dialect = _signed(source) or _signed(_control_tokens(metadata)) or _by_architecture(metadata)
    if dialect is None:
        dialect = PLAIN_JSON if source else PLAIN_TEXT
    # The beginning of a marker, because some templates put the rest of it together.
    thinks = any(begin.strip()[:6] in source for begin, _ in dialect.thinking) if source else dialect.thinks
    return replace(dialect, turn_ends=_turn_ends(dialect, source), thinks=thinks)


def named(name: str) -> Dialect:
    """The dialect of that name, for models whose template does not tell."""
    if name not in DIALECTS:
        raise ConfigError(Option("dialect"), f" must be one of {', '.join(sorted(DIALECTS))}, got {name!r}")
    return DIALECTS[name]


def _turn_ends(dialect: Dialect, source: str) -> tuple[str, ...]:
    """End-of-turn markers: the dialect's that the template has, else other dialects', else all of the dialect's."""
    own = tuple(end for end in dialect.turn_ends if end in source)
    return own or tuple(sorted(end for end in _TURN_ENDS if end in source)) or tuple(dialect.turn_ends)


def _signed(text: str) -> Dialect | None:
    return next((dialect for dialect, signs in _SIGNS if all(sign in text for sign in signs)), None)


def _control_tokens(metadata: Mapping[str, Any]) -> str:
    """The vocabulary's control and user-defined tokens, a line each."""
    tokens, types = (metadata.get(f"tokenizer.ggml.{name}", ()) for name in ("tokens", "token_type"))
    return "\n".join(str(token) for token, kind in zip(tokens, types, strict=False) if kind in _CONTROL_TYPES)


def _by_architecture(metadata: Mapping[str, Any]) -> Dialect | None:
    """That of the row with a dialect whose name is the longest beginning of it: converters differ in what they add."""
    architecture = str(metadata.get("general.architecture", ""))
    alike = [row for row in ARCHITECTURES if row.dialect and architecture.startswith(row.name)]
    return DIALECTS[max(alike, key=lambda row: len(row.name)).dialect] if alike else None
