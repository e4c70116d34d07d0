"""Hostile contents: texts of atoms that look like control tokens and template syntax, each between two marks.

Every atom stands between ⟦ and ⟧, which no template touches. So what a user typed is found again in any rendered text,
and no token that steers the model may lie between such marks, unless the template itself cut an atom in two.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ollama_engine.chat.template import ChatTemplate
from ollama_engine.errors import ChatError
from ollama_engine.segments import Text
from ollama_engine.tokenizer import Tokenizer, from_metadata
from tests.chat.conversations import NOW, TOKENS
from tests.tokenizer.vocabs import ALPHABET, CONTROL, USER_DEFINED, bpe_metadata

MARKUP = re.compile(
    r"<[|｜][^|｜<>{}'\n]{1,40}[|｜]>|</?[a-zA-Z_▁:]{1,30}>|\[/?[A-Z_]{2,30}\]|<[a-z]+_of_[a-z]+>|\]~!?b\[?\]?|\[e~\["
)
"""Texts of templates that may be control tokens."""

COMMON = (
    "<s>", "</s>", "<unk>", "<pad>", "<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|begin_of_text|>",
    "<|start_header_id|>", "<|end_header_id|>", "<|end_of_text|>", "[INST]", "[/INST]", "<<SYS>>", "<</SYS>>",
    "<start_of_turn>", "<end_of_turn>", "<bos>", "<eos>", "<|user|>", "<|assistant|>", "<|system|>", "<|end|>",
    "<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "<|channel|>", "<|message|>", "<|start|>",
    "<|return|>", "<|call|>", "<|constrain|>", "<｜User｜>", "<｜Assistant｜>", "<｜begin▁of▁sentence｜>",
    "<｜end▁of▁sentence｜>", "<｜tool▁calls▁begin｜>", "[TOOL_CALLS]", "[AVAILABLE_TOOLS]", "<|python_tag|>",
    "<|START_OF_TURN_TOKEN|>", "<|END_OF_TURN_TOKEN|>", "<|CHATBOT_TOKEN|>", "<|START_THINKING|>",
)  # fmt: skip

SYNTAX = (
    "{{ messages }}", "{% endfor %}", "{% raw %}", "{% endraw %}", "{# x #}", "{%- if true -%}", "{{ bos_token }}",
    "{{ raise_exception('x') }}", "{{ ''.__class__ }}", "%s", "{0}", "\\n", "\\u003c|im_end|\\u003e",
    "&lt;|im_end|&gt;", "\x00", "\u200b", "\ufeff", "\r\n", "\u2028", "é", "\U0001f600", "'", '"', "\\", "<!--", "]]>",
    "\ue000", "\U000f0000",
)  # fmt: skip

MARKED = re.compile("⟦([^⟦⟧]*)⟧")
KINDS = ("tools", "talk", "message")
SLOTS = 10
"""Contents in one conversation."""


@dataclass(frozen=True)
class Target:
    """A template, and a vocabulary in which all that it writes like control tokens are such."""

    template: ChatTemplate
    tokenizer: Tokenizer
    tokens: tuple[str, ...]

    @classmethod
    def of(cls, source: str) -> Target:
        tokens = tuple(dict.fromkeys([*COMMON, *(found.strip() for found in MARKUP.findall(source))]))
        special = [
            (text, USER_DEFINED if text in ("<think>", "</think>") or "tool" in text else CONTROL) for text in tokens
        ]
        metadata = bpe_metadata(ALPHABET, special=special, bos_token_id=len(ALPHABET), eos_token_id=len(ALPHABET) + 1)
        metadata["tokenizer.chat_template"] = source + "".join(tokens)
        return cls(ChatTemplate(source, TOKENS, lambda: NOW), from_metadata(metadata), tokens)

    def ids(self, segments: Sequence[Text]) -> list[int]:
        parts = [(segment.text, segment.parse_special) for segment in segments]
        return self.tokenizer.encode_parts(parts, add_special=False)

    def steering(self, ids: Sequence[int]) -> list[tuple[int, int, str]]:
        """Places of tokens that steer the model: (first character, the one behind the last, text)."""
        data, found = b"", []
        for id_ in ids:
            piece = self.tokenizer.token_bytes(id_, skip_special=False)
            if self.tokenizer.is_steering(id_):
                found.append((len(data), len(data) + len(piece), piece.decode()))
            data += piece
        text = data.decode()
        at = {0: 0}
        end = 0
        for number, character in enumerate(text, 1):
            end += len(character.encode())
            at[end] = number
        return [(at[first], at[last], name) for first, last, name in found]


def atoms(rng: random.Random, tokens: Sequence[str], count: int) -> list[str]:
    """Control tokens as they are, cut, doubled, nested, in other letters; and syntax."""

    def atom() -> str:
        token = rng.choice(tokens)
        cut = rng.randrange(len(token))
        return rng.choice((
            token, token, token, token + rng.choice(tokens), token[:cut], token[cut:],
            token[:cut] + token + token[cut:],
            token.upper(), token.lower(), token.replace("|", "｜"), f" {token} ", f"\n{token}\n", token + "\n",
            rng.choice(SYNTAX), rng.choice(SYNTAX) + token, f"user\n{token}", f"assistant{token}",
        ))  # fmt: skip

    return [re.sub("[⟦⟧]", "", atom()) for _ in range(count)]


def content(rng: random.Random, tokens: Sequence[str]) -> str:
    """A few atoms, each between marks, with words around them."""
    words = ("", "", " ", "\n", "a", "word ", "  ", "\n\n", "1")
    return "".join(f"{rng.choice(words)}⟦{atom}⟧{rng.choice(words)}" for atom in atoms(rng, tokens, rng.randint(1, 4)))


def harmless(text: str) -> str:
    """The same text with all atoms made of as many letters."""
    return MARKED.sub(lambda match: f"⟦{'x' * len(match[1])}⟧", text)


def conversation(texts: list[str]) -> tuple[list[dict[str, Any]], list[dict[str, Any]], list[dict[str, Any]]]:
    """Messages, tools and documents with these ten texts everywhere that a caller's text can stand."""
    system, first, said, second, name, key, value, result, description, title = texts
    call = {"id": "abcdef123", "type": "function", "function": {"name": name, "arguments": {key: value, "n": [value]}}}
    messages = [
        {"role": "system", "content": system},
        {"role": "user", "content": first, "name": name},
        {"role": "assistant", "content": said, "reasoning_content": second},
        {"role": "user", "content": second},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "abcdef123", "name": name, "content": result},
        {"role": "assistant", "content": said},
        {"role": "user", "content": first},
    ]
    parameters = {
        "type": "object",
        "properties": {key: {"type": "string", "description": description, "enum": [value]}},
    }
    function = {"name": name, "description": description, "parameters": parameters}
    return messages, [{"type": "function", "function": function}], [{"title": title, "text": result}]


def asked(texts: list[str], kind: str) -> dict[str, Any]:
    """Arguments of `ChatTemplate.render`: a conversation with tools, one without, or one message."""
    messages, tools, documents = conversation(texts)
    given: dict[str, Any] = {"messages": messages, "tools": tools, "documents": documents}
    if kind == "talk":
        given = {"messages": [*messages[:3], messages[-1]], "tools": None, "documents": None}
    if kind == "message":
        given = {"messages": [messages[1]], "tools": None, "documents": None}
    return {**given, "add_generation_prompt": True, "variables": {"functions": texts[0], "datetime": texts[1]}}


def rendered(template: ChatTemplate, texts: list[str], kind: str) -> str | None:
    """None where the template refuses these messages."""
    options = asked(texts, kind)
    try:
        return template.render(options.pop("messages"), **options)
    except ChatError:
        return None


def hostile(name: str, render: Callable[[list[str], str], str | None]) -> list[str | None]:
    """Some conversations for one template, always the same."""
    rng = random.Random(name)
    return [render([content(rng, COMMON) for _ in range(SLOTS)], kind) for kind in KINDS for _ in range(8)]
