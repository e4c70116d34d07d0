"""Any text, in every dialect: cut anyhow it gives the same events, raises and loses nothing, and takes linear time."""

from __future__ import annotations

import json
import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ollama_engine.chat.dialects import DIALECTS, named
from ollama_engine.chat.dialects.json_scanner import MAX_DEPTH, JsonScanner, StringDecoder
from ollama_engine.chat.dialects.scanner import Markers
from tests.chat.dialects.examples import EXAMPLES, OTHER_FORMS
from tests.chat.dialects.reading import TOOLS, chunks, events, joined, summed
from tests.support.suite import scaled, slow_except

EXAMPLE_COUNT = scaled(400, quick=12)
FORMS = {name: [text, *(other for dialect, other in OTHER_FORMS if dialect == name)] for name, text in EXAMPLES.items()}
NOISE = [
    "\n",
    "\n\n",
    " ",
    "<",
    "<|",
    "</",
    "[",
    "{",
    "}",
    '"',
    "\\",
    "```",
    "é",
    "😀",
    "{{}}",
    '"\\u00e9',
    "tool",
    "=",
    ">",
]

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


@st.composite
def answers(draw: st.DrawFn, name: str) -> str:
    """Pieces of answers in a dialect, from whole ones to single characters, with noise and JSON between them."""
    pieces = []
    for _ in range(draw(st.integers(1, 6))):
        form = draw(st.sampled_from(FORMS[name]))
        begin = draw(st.integers(0, len(form)))
        piece = draw(
            st.just(form)
            | st.just(form[begin : begin + draw(st.integers(0, 80))])
            | st.sampled_from(NOISE)
            | json_values.map(lambda value: json.dumps(value, ensure_ascii=False))
            | st.text(max_size=5)
        )
        pieces.append(piece)
    return "".join(pieces)


@pytest.mark.parametrize("name", sorted(DIALECTS))
def test_any_cut_gives_the_same_events(name: str) -> None:
    dialect = named(name)

    @settings(max_examples=EXAMPLE_COUNT)
    @given(answers(name), st.lists(st.integers(1, 30), min_size=1, max_size=5), st.booleans(), st.booleans())
    def check(text: str, sizes: list[int], reasoning_open: bool, with_tools: bool) -> None:
        tools = TOOLS if with_tools else ()
        whole = joined(events(dialect, [text], tools, reasoning_open))
        assert joined(events(dialect, text, tools, reasoning_open)) == whole
        assert joined(events(dialect, chunks(text, sizes), tools, reasoning_open)) == whole
        summed(whole)

    check()


@pytest.mark.parametrize("name", sorted(DIALECTS))
def test_words_never_get_lost(name: str) -> None:
    """Words put between pieces of answers are somewhere in the events, and in their order in the content."""
    dialect = named(name)

    @settings(max_examples=EXAMPLE_COUNT)
    @given(st.lists(st.sampled_from(FORMS[name] + NOISE), max_size=6), st.booleans())
    def check(pieces: list[str], reasoning_open: bool) -> None:
        text = "".join(f"word{number} {piece} " for number, piece in enumerate(pieces)) + "end"
        answer = summed(joined(events(dialect, text, TOOLS, reasoning_open)))
        said = [answer.content, answer.reasoning, *(call.text for call in answer.malformed)]
        said += [call.arguments_text for call in answer.calls]
        for word in re.findall(r"word\d+|end$", text):
            assert any(word in part for part in said), word

    check()


@pytest.mark.parametrize("name", sorted(DIALECTS))
def test_text_without_markers_is_content_as_it_is(name: str) -> None:
    @settings(max_examples=EXAMPLE_COUNT)
    @given(st.text(st.characters(exclude_characters="<[]`{>AfHt\n "), max_size=30), st.integers(1, 7))
    def check(text: str, size: int) -> None:
        answer = summed(joined(events(named(name), chunks(text, [size]))))
        assert (answer.content, answer.reasoning, answer.calls, answer.malformed) == (text, "", [], [])

    check()


LONG = scaled(1_000_000, quick=100_000)
KINDS = {
    "content": lambda text: "x < y [ { \n\n" * (LONG // 12),
    "reasoning": lambda text: text.replace("They ask.", "x < y [ { \n\n" * (LONG // 12)),
    "arguments": lambda text: text.replace("Paris", "Paris \\u00e9 <" * (LONG // 14)),
    "malformed": lambda text: text.replace("weather", "whether").replace("Paris", "Paris <" * (LONG // 7)),
    "calls": lambda text: text * (LONG // len(text)),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", slow_except(sorted(DIALECTS), "hermes", "qwen3-coder", "harmony"))
def test_time_is_linear(name: str, kind: str) -> None:
    """Four times the text in chunks of a token's size takes about four times as long."""

    def seconds(text: str) -> float:
        parser = named(name).parser(tools=TOOLS)
        pieces = chunks(text, [3, 5])
        begin = time.process_time()
        for piece in pieces:
            parser.feed(piece)
        parser.finish()
        return time.process_time() - begin

    text = KINDS[kind](EXAMPLES[name])
    short, long = min(seconds(text[: len(text) // 4]) for _ in range(2)), seconds(text)
    assert long < 10 * short + 0.1
    assert long < 30e-6 * len(text) + 0.1


@settings(max_examples=EXAMPLE_COUNT)
@given(json_values, st.integers(1, 5), st.booleans())
def test_scanner_reads_what_json_is(value: object, size: int, ascii_only: bool) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only)
    scanner, read = JsonScanner(), ""
    for piece in chunks(text + " ,", [size]):
        _, found = scanner.scan(piece, 0)
        read += found
        if scanner.done:
            break
    assert scanner.problem is None
    assert scanner.done
    assert read == text


@settings(max_examples=EXAMPLE_COUNT * 4)
@given(st.text('{}[]",:0123456789.eE+-truefalsn\\u ', max_size=12) | json_values.map(json.dumps), st.integers(1, 4))
def test_scanner_agrees_with_the_json_module(text: str, size: int) -> None:
    """A text that is not JSON is a problem, or is not done, or goes on behind the value."""
    scanner, read = JsonScanner(), 0
    for piece in chunks(text, [size]):
        at, _ = scanner.scan(piece, 0)
        read += at
        if scanner.done or scanner.problem:
            break
    scanner.close()
    try:
        json.loads(text, parse_constant=lambda word: json.loads(""))
        valid = True
    except ValueError:
        valid = False
    assert valid == (scanner.done and not text[read:].strip(" \n\t\r"))


@settings(max_examples=EXAMPLE_COUNT)
@given(st.text(), st.integers(1, 5), st.booleans())
def test_decoder_of_strings(text: str, size: int, ascii_only: bool) -> None:
    decoder = StringDecoder()
    decoded = "".join(decoder.decode(piece) for piece in chunks(json.dumps(text, ensure_ascii=ascii_only), [size]))
    assert decoded == text


def test_scanner_of_deep_values() -> None:
    fits, too_deep = JsonScanner(), JsonScanner()
    fits.scan("[" * MAX_DEPTH + "]" * MAX_DEPTH, 0)
    too_deep.scan("[" * (MAX_DEPTH + 1), 0)
    assert fits.done
    assert too_deep.problem == "more than 100 arrays and objects in each other"


@settings(max_examples=EXAMPLE_COUNT)
@given(st.lists(st.text("ab\n", min_size=1, max_size=4), min_size=1, max_size=4), st.text("ab\n", max_size=20))
def test_markers_are_found_or_may_yet_come(texts: list[str], text: str) -> None:
    """Against the definition, place by place."""
    texts = [text for text in texts if not text.startswith("\n")] or ["a"]
    markers = Markers(texts, line_breaks=1)
    spelled = {"\n" * count + text: text for text in texts for count in range(2)}
    found = markers.find(text, 0)
    places = [place for place in range(len(text)) if any(text.startswith(marker, place) for marker in spelled)]
    assert (None if found is None else found.start()) == (places[0] if places else None)
    if found is not None:
        longest = max((m for m in spelled if text.startswith(m, found.start())), key=len)
        assert found[0] == longest
    undecided = [p for p in range(len(text)) if any(len(m) > len(text) - p and m.startswith(text[p:]) for m in spelled)]
    assert markers.undecided(text, 0) == (undecided[0] if undecided else len(text))
