"""Marks stay with the characters that they belong to.

Trusted characters are capitals, digits or "!" here and all others are not, so each operation can be checked on its own.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ollama_engine.chat.provenance import Safe, Traced, joined, trusted_spans
from tests.support.suite import scaled

OURS, THEIRS = "ABC  \n1!", "abc  \n.,"
EXAMPLES = settings(max_examples=scaled(2_000, quick=60))


@st.composite
def texts(draw: st.DrawFn, most: int = 5) -> str:
    """Plain, trusted or mixed; a space or line break may be either."""
    parts = draw(st.lists(st.tuples(st.booleans(), st.text("ABC \n1!abc.,", max_size=6)), max_size=most))
    return joined([Traced.whole(only(text, OURS)) if ours else only(text, THEIRS) for ours, text in parts])


def only(text: str, alphabet: str) -> str:
    return "".join(c for c in text if c in alphabet)


def check(found: str, wanted: str, *, every: bool = True) -> None:
    """The text is str's own; no character of theirs is trusted, and, with `every`, all capitals of ours are."""
    assert str.__str__(found) == wanted
    marked = [False] * len(found)
    last = -1
    for begin, end in trusted_spans(found):
        assert last < begin < end <= len(found), "ascending, apart from each other and not empty"
        last = end
        marked[begin:end] = [True] * (end - begin)
    for character, trusted in zip(found, marked, strict=True):
        assert not (trusted and character in "abc.,")
        assert trusted or not every or character not in "ABC1!"


SEPARATORS = st.sampled_from([" ", "\n", "A", "a", "  ", "AB", "b ", "!"])
CUTS: dict[str, Callable[[str, Any], Any]] = {
    "strip": lambda text, _: text.strip(),
    "lstrip": lambda text, _: text.lstrip("\n a"),
    "rstrip": lambda text, _: text.rstrip(" A!"),
    "split": lambda text, _: text.split(),
    "split by": lambda text, sep: text.split(sep),
    "split twice": lambda text, sep: text.split(sep, 2),
    "split in words": lambda text, _: text.split(None, 1),
    "rsplit": lambda text, sep: text.rsplit(sep, 1),
    "rsplit in words": lambda text, _: text.rsplit(None, 1),
    "splitlines": lambda text, _: text.splitlines(),
    "lines with ends": lambda text, _: text.splitlines(True),
    "partition": lambda text, sep: text.partition(sep),
    "rpartition": lambda text, sep: text.rpartition(sep),
    "removeprefix": lambda text, sep: text.removeprefix(sep),
    "removesuffix": lambda text, sep: text.removesuffix(sep),
    "slice": lambda text, sep: text[len(sep) : -2],
    "backwards slice": lambda text, _: text[5:2],
    "last": lambda text, _: text[-1] if text else "",
    "characters": lambda text, _: list(text),
    "twice": lambda text, _: text * 2,
    "never": lambda text, _: text * -1,
}


@pytest.mark.parametrize("name", CUTS)
@EXAMPLES
@given(text=texts(), sep=SEPARATORS)
def test_cutting(name: str, text: str, sep: str) -> None:
    found, wanted = CUTS[name](text, sep), CUTS[name](str.__str__(text), sep)
    pairs = [(found, wanted)] if isinstance(wanted, str) else zip(found, wanted, strict=True)
    assert isinstance(wanted, str) or len(found) == len(wanted)
    for piece, plain in pairs:
        check(piece, plain)


@EXAMPLES
@given(parts=st.lists(texts(), max_size=4), sep=texts(1))
def test_joining(parts: list[str], sep: str) -> None:
    plain = [str.__str__(part) for part in parts]
    check(joined(parts), "".join(plain))
    if isinstance(sep, Traced):
        check(sep.join(parts), str.__str__(sep).join(plain))
    for left, right in itertools.pairwise(parts):
        check(left + right, str.__str__(left) + str.__str__(right))
        check(f"{left}{right}", str.__str__(left) + str.__str__(right), every=False)


@EXAMPLES
@given(text=texts(), old=SEPARATORS, new=texts(1), count=st.integers(-1, 3))
def test_replacing(text: str, old: str, new: str, count: int) -> None:
    check(text.replace(old, new, count), str.__str__(text).replace(old, str.__str__(new), count), every=False)


def test_what_replaces_typed_text_is_not_trusted() -> None:
    mixed = joined([Traced.whole("<"), "image", Traced.whole(">")])
    assert trusted_spans(mixed.replace("image", Traced.whole("|x|"))) == ((0, 1), (4, 5))
    assert trusted_spans(Traced.whole("{name}!").replace("{name}", "<|x|>")) == ((5, 6),)
    assert trusted_spans(Traced.whole("a-b").replace("-", Traced.whole("|"))) == ((0, 3),)
    assert trusted_spans("image".replace("image", Traced.whole("<|x|>"))) == ()


@EXAMPLES
@given(text=texts())
def test_other_letters(text: str) -> None:
    for change in (str.upper, str.lower, str.title, str.capitalize):
        found = getattr(text, change.__name__)()
        assert found == change(str.__str__(text))
        assert trusted_spans(found) == trusted_spans(text)
    assert trusted_spans(Traced.whole("ß").upper()) == (), "one character became two"


@EXAMPLES
@given(text=texts())
def test_it_is_a_str(text: str) -> None:
    plain = str.__str__(text)
    assert text == plain
    assert hash(text) == hash(plain)
    assert {plain: 1}[text] == 1
    assert str(text) is text
    assert plain in f"x{text}"
    for other in ("{}".format(text), "%s" % text, text.encode().decode(), text.swapcase(), text[::-1], text.zfill(9)):  # noqa: UP031, UP032
        assert trusted_spans(other) == () or trusted_spans(other) == trusted_spans(text)


def test_safe_text_escapes_what_is_added() -> None:
    marked = Safe.whole("<a>") + joined(["<", Traced.whole("&")]) + "'\""
    assert marked == "<a>&lt;&amp;&#39;&#34;"
    assert trusted_spans(marked) == ((0, 3), (7, 12))
    assert "<" + Safe.whole("<") == "&lt;<"
    assert Traced.whole("<") + Safe.whole("<") == "&lt;<"
    assert Safe.whole("<") + Safe.whole("<") == "<<"
