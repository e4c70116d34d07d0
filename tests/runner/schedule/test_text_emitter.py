"""TextEmitter: what is delivered does not depend on how the text comes in pieces."""

from __future__ import annotations

import codecs
from dataclasses import dataclass
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ollama_engine.errors import ClosedError, ConfigError
from ollama_engine.runner.schedule.text_emitter import TextEmitter


class PieceDetokenizer:
    """Token i is the i-th piece of bytes; incomplete UTF-8 waits, as in the real one."""

    def __init__(self, pieces: list[bytes]) -> None:
        self._pieces = pieces
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        return self._decoder.decode(self._pieces[token])

    def flush(self) -> str:
        return self._decoder.decode(b"", final=True)


def deliver(pieces: list[bytes], stops: list[str]) -> tuple[list[str], TextEmitter]:
    emitter = TextEmitter(PieceDetokenizer(pieces), stops)
    out = []
    for token in range(len(pieces)):
        out.append(emitter.push(token))
        if emitter.stopped:
            break
    out.append(emitter.flush())
    return out, emitter


def cut(text: str, stops: list[str]) -> tuple[str, str | None]:
    """The definition: character by character, the first complete stop string, of several the longest."""
    for end in range(1, len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            longest = max(complete, key=len)
            return text[: end - len(longest)], longest
    return text, None


@dataclass(frozen=True)
class Case:
    name: str
    pieces: list[str]
    stops: list[str]
    out: list[str]
    """What each push delivers, then the flush."""
    stop: str | None = None


CASES = [
    Case("no stop strings", ["Hel", "lo"], [], ["Hel", "lo", ""]),
    Case("in one token", ["Hello\nUser: x"], ["\nUser:"], ["Hello", ""], "\nUser:"),
    Case("across tokens", ["Hello", "\nUs", "er:"], ["\nUser:"], ["Hello", "", "", ""], "\nUser:"),
    Case("a start that was none", ["a\nUs", "age"], ["\nUser:"], ["a", "\nUsage", ""]),
    Case("a start at the end is text", ["a\nUs"], ["\nUser:"], ["a", "\nUs"]),
    Case("a start within a start", ["aa", "ab", "c"], ["aabc"], ["", "a", "", ""], "aabc"),
    Case("a start within a start, shifted", ["aaa", "abc"], ["aabc"], ["a", "a", ""], "aabc"),
    Case("complete first wins", ["abc", "d", "ef"], ["abcdef", "cd"], ["", "ab", ""], "cd"),
    Case("of one end the longest wins", ["xab", "cd"], ["cd", "abcd"], ["x", "", ""], "abcd"),
    Case("two in one token", ["one,two.three"], [".", ","], ["one", ""], ","),
    Case("at the very start", ["###"], ["###"], ["", ""], "###"),
    Case("empty pieces", ["", "a", ""], ["ab"], ["", "", "", "a"]),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_cases(case: Case) -> None:
    out, emitter = deliver([piece.encode() for piece in case.pieces], case.stops)
    assert out == case.out
    assert emitter.stop == case.stop
    assert emitter.stopped is (case.stop is not None)


def test_stop_string_cut_within_a_character() -> None:
    raw = "ok→done".encode()
    pieces = [raw[i : i + 1] for i in range(len(raw))]
    assert "".join(deliver(pieces, ["→d"])[0]) == "ok"


def test_a_broken_end_is_delivered_and_can_stop() -> None:
    assert deliver([b"ab", b"\xe2\x86"], [])[0] == ["ab", "", "\N{REPLACEMENT CHARACTER}"]
    out, emitter = deliver([b"ab", b"\xe2\x86"], ["b\N{REPLACEMENT CHARACTER}"])
    assert "".join(out) == "a"
    assert emitter.stopped


def test_after_the_end() -> None:
    out, emitter = deliver([b"a.b"], ["."])
    assert out == ["a", ""]
    with pytest.raises(ClosedError, match=r"ended \(stop string\), got token 0"):
        emitter.push(0)
    _, emitter = deliver([b"a"], [])
    assert emitter.flush() == ""
    with pytest.raises(ClosedError, match=r"ended \(flush\)"):
        emitter.push(0)


def test_empty_stop_string_raises() -> None:
    with pytest.raises(ConfigError, match="non-empty"):
        TextEmitter(PieceDetokenizer([]), ["a", ""])


@given(
    raw=st.one_of(
        st.text("ab", max_size=40).map(str.encode),
        st.text("aé→😀", max_size=20).map(str.encode),
        st.binary(max_size=30),
    ),
    cuts=st.lists(st.integers(0, 80), max_size=12),
    stops=st.lists(
        st.one_of(
            st.text("ab", min_size=1, max_size=6), st.text("aé→😀\N{REPLACEMENT CHARACTER}", min_size=1, max_size=3)
        ),
        max_size=4,
    ),
)
def test_any_text_in_any_pieces(raw: bytes, cuts: list[int], stops: list[str]) -> None:
    borders = sorted({0, len(raw), *(min(border, len(raw)) for border in cuts)})
    pieces = [raw[a:b] for a, b in pairwise(borders)]
    text, stop = cut(raw.decode("utf-8", "replace"), stops)
    out, emitter = deliver(pieces, stops)
    assert "".join(out) == text
    assert emitter.stop == stop


@given(
    pieces=st.lists(st.text("ab", max_size=5), max_size=12),
    stops=st.lists(st.text("ab", min_size=1, max_size=6), max_size=4),
)
def test_nothing_is_held_without_need(pieces: list[str], stops: list[str]) -> None:
    """Until a stop string comes, what is not yet delivered is the start of one."""
    emitter = TextEmitter(PieceDetokenizer([piece.encode() for piece in pieces]), stops)
    delivered = ""
    for token in range(len(pieces)):
        delivered += emitter.push(token)
        if emitter.stopped:
            return
        held = "".join(pieces[: token + 1])[len(delivered) :]
        assert not held or any(stop.startswith(held) and stop != held for stop in stops)
