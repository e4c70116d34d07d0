"""Texts that tokenizers get wrong: made from small parts, the same for the same seed."""

from __future__ import annotations

import random
import unicodedata
from collections.abc import Sequence
from functools import cache

from tests.support.suite import scaled

PARTS = [
    # white space of all kinds, and what looks like it
    " ", "  ", "   ", "\t", "\n", "\n\n", "\r\n", "\r", "\x0b", "\x0c", "\x85", "\xa0", "\u2003", "\u3000", "\u200b",
    "\u2028", "\ufeff", "\x00", "\x01", "\x1c", "\x1f", "\x7f",
    # words and contractions
    "a", "b", "A", "Z", "the", " the", "Hello", "HELLO", "hELLo", "iPhone", "it's", "IT'S", "I'm", "we'Re", "'ll",
    "'LL", "'d", "'t", "'s", "'S", "'", "''", "\u2019s", "'\u017f", "y'all'd've", "camelCase", "XMLHttpRequest",
    "snake_case",
    # digits
    "0", "1", "12", "123", "1234", "12345", "1234567", "1 000", "3.14", "\u0663", "\u096a", "\u0968\u0969", "\xbd",
    "\xb2", "\u2167", "\u2460", "1a", "a1", "\uff11\uff12\uff13",
    # punctuation and symbols
    "!", "?!", "...", "\u2026", "--", "\u2014", "$", "\u20ac", "<", ">", "<=", "=", "+", "^", "~", "`", "|", "\\",
    "/", "//", "/*", "*/", "#", "@", "_", "(", ")", "[", "]", "{", "}", '"', "\u201c", "\u201d", "\u3002", "\uff0c",
    "\uff01", "\u3001", "\u061f", "\u0964", "\u06d4", "\u060c",
    # letters with and without marks and case
    "\xe9", "e\u0301", "\xf1", "\xdf", "\u1e9e", "\xc5", "A\u030a", "\u01c5", "\u02b0", "\xaa", "\u03a9", "\u0416",
    "\u041f\u0440\u0438\u0432\u0435\u0301\u0442", "\u041f\u0420\u0418", "\u03b5\u03bb\u03bb", "\u05e2\u05d1",
    "\u0627\u0644", "\u0939\u093f\u0928\u094d\u0926\u0940", "\u09ac\u09be\u0982", "\u0e44\u0e17\u0e22",
    "\u10e5\u10d0", "\u0540\u0561", "\u0301", "\ufb01", "\u0130", "\u0131", "\u212a", "\xb5",
    # East Asia
    "\u4e2d", "\u4e2d\u6587", "\u65e5\u672c\u8a9e", "\u3072\u3089", "\u30ab\u30bf", "\u30fc", "\u3005", "\u3007",
    "\u2e80", "\ud55c\uad6d\uc5b4", "\u3131\u3134", "\u3105", "\uff76\uff85", "\uff21\uff22", "\U00020000",
    # beyond the basic plane, joiners, private and unassigned characters
    "\U0001d49c", "\U00010400\U00010428", "\U0001f600", "\U0001f468\u200d\U0001f469\u200d\U0001f467",
    "\U0001f3f3\ufe0f\u200d\U0001f308", "\U0001f44d\U0001f3fd", "\U0001f1eb\U0001f1ee", "\u2764\ufe0f", "\ufffd",
    "\U000e0001", "\ue000", "\U0010ffff",
    # code
    "def f(x):\n    return x+1\n", "for(i=0;i<10;i++){\n\t\tfoo();\r\n}", "http://a.b/c?d=e&f=%20", "<sentinel:12>",
    "IMGIMGABCZ",
]  # fmt: skip


def nasty_texts(count: int, seed: int = 0) -> list[str]:
    """Concatenations of 1 to 13 parts; some repeat few parts, some are random characters."""
    rng = random.Random(seed)
    return [_text(rng) for _ in range(count)]


def _text(rng: random.Random) -> str:
    size = rng.choice((1, 2, 3, 5, 8, 13))
    kind = rng.random()
    if kind < 0.7:
        return "".join(rng.choices(PARTS, k=size))
    if kind < 0.8:
        return " ".join(rng.choices(PARTS, k=size))
    if kind < 0.9:
        return "".join(rng.choices(rng.sample(PARTS, 3), k=2 * size))
    # Only characters that every Unicode version in use knows: references are older than our tables.
    ranges = ((0x20, 0x7F), (0xA0, 0x250), (0x400, 0x460), (0x3041, 0x3090), (0x4E00, 0x9FA0), (0x1F600, 0x1F640))
    return "".join(chr(rng.randrange(*rng.choice(ranges))) for _ in range(size))


WHITE = " \t\n\r\x0b\x0c\x1c\x1f\x85\xa0\u1680\u2003\u2028\u2029\u202f\u205f\u3000\u200b\ufeff"
CONTROLS = "".join(map(chr, [*range(0x20), *range(0x7F, 0xA0), 0xAD, 0x200C, 0x200E, 0x202A, 0x2060, 0xFFF9, 0xE0001]))
CODE = [
    "if", "else", "return", "self", "__init__", "i++", "->", "=>", "==", "!=", "&&", "||", "::", "0x1F", "1e-9", "\n",
    "\n    ", "\n\t\t", "\r\n  ", "  ", " ", "(", ")", "{", "}", "[", "];", ";", ",", "'", '"', "#", "//", "/*", "*/",
    "$x", "@a", "f\"{x!r}\"", "%d", "\\n", "\\u0041", "<div>", "</a>", "a_b", "aB", "x1", "1_000", "3.14f", "...",
    "`", "~", "^",
]  # fmt: skip


@cache
def wild_texts(seed: int, specials: Sequence[str] = ()) -> list[str]:
    """Texts to compare vocabularies on.

    A third are nasty ones; the others are characters of all scripts, white space, control characters and code. With
    `specials`, these stand in some of them, once or more, whole and cut off.
    """
    rng = random.Random(seed)
    makers = [_any_script, _white, _code]
    count = scaled(10_000, quick=1_000)
    texts = [*nasty_texts(count // 3, seed), *(makers[i % len(makers)](rng) for i in range(count - count // 3))]
    return [_with_specials(rng, text, specials) if specials and i % 5 == 0 else text for i, text in enumerate(texts)]


@cache
def _old_characters() -> list[str]:
    """All that Unicode 3.2 has: every version in use since knows them."""
    old = unicodedata.ucd_3_2_0
    return [c for c in map(chr, range(0x110000)) if old.category(c) not in ("Cn", "Cs", "Co")]


def _any_script(rng: random.Random) -> str:
    """Random characters, some of them of one block, with an ordinary part between."""
    characters = _old_characters()
    at = rng.randrange(len(characters))
    near = characters[max(0, at - 40) : at + 40]
    size = rng.choice((1, 3, 8))
    return "".join(rng.choices(characters, k=size)) + rng.choice(PARTS) + "".join(rng.choices(near, k=size))


def _white(rng: random.Random) -> str:
    """Runs of white space and control characters, with and without words between."""
    words = ["a", "B", "1", "12", ".", "'s", "\u4e2d", "\U0001f600", ""]
    runs = [rng.choice(WHITE + CONTROLS) * rng.choice((1, 1, 2, 3, 4, 7, 16, 33)) for _ in range(rng.randrange(1, 6))]
    return "".join(run + rng.choice(words) for run in runs)


def _code(rng: random.Random) -> str:
    return "".join(rng.choices(CODE, k=rng.randrange(1, 20)))


def _with_specials(rng: random.Random, text: str, specials: Sequence[str]) -> str:
    for special in rng.choices(specials, k=rng.randrange(1, 4)):
        at = rng.randrange(len(text) + 1)
        end = len(special) - rng.choice((0, 0, 0, 1))
        text = text[:at] + special[:end] + text[at:]
    return text


def prose(size: int, seed: int = 0) -> str:
    """English-looking text of `size` characters."""
    rng = random.Random(seed)
    words = "the quick brown fox it's over lazy dogs don't a of to and in that (was) for on with 1234 2021, see. end\n"
    text = " ".join(rng.choices(words.split(" "), k=size // 2))
    return text[:size]
