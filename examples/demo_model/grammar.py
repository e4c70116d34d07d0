"""Sentence templates: alternatives, slots, and the small repairs English needs afterwards.

A template is plain text with two kinds of marks. `[a|b|c]` stands for one of its alternatives, drawn at random; they
nest, and an alternative may be empty. `{slot}` stands for a value, `{Slot}` for the same value with a capital first
letter; a value may itself be a template.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from random import Random

Slots = Mapping[str, str]

_INNERMOST_CHOICE = re.compile(r"\[([^\[\]]*)\]")
_SLOT = re.compile(r"\{([A-Za-z0-9_]+)\}")
_ARTICLE = re.compile(r"\b([Aa]) (?=(?!one\b|use|uni)[aeiou]|hour|honest)")
_SPACES = re.compile(r" {2,}")
_SPACE_BEFORE_MARK = re.compile(r" +([,.!?])")


def expand(template: str, slots: Slots, rng: Random) -> str:
    """Draw every alternative, fill every slot, then make the articles and spaces right.

    Raises `KeyError` for a slot that `slots` lacks.
    """
    text = template
    while "[" in text or "{" in text:
        text = _INNERMOST_CHOICE.sub(lambda m: rng.choice(m[1].split("|")), text)
        if "[" not in text:
            text = _SLOT.sub(lambda m: _value(m[1], slots), text)
    return tidy(text)


def _value(name: str, slots: Slots) -> str:
    if name[0].isupper():
        return capital(slots[name[0].lower() + name[1:]])
    return slots[name]


def capital(text: str) -> str:
    """The text with its first letter in upper case, also where an alternative opens it."""
    if text.startswith("["):
        inner, rest = text[1:].split("]", 1)
        return "[" + "|".join(capital(choice) for choice in inner.split("|")) + "]" + rest
    return text[:1].upper() + text[1:]


def tidy(text: str) -> str:
    """`a` before a vowel sound becomes `an`; one space between words, none before a mark."""
    text = _ARTICLE.sub(r"\1n ", text)
    return _SPACE_BEFORE_MARK.sub(r"\1", _SPACES.sub(" ", text)).strip(" ")
