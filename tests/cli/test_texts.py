"""Texts that are typed, piped in or read: UTF-8 as it is, anything else with the byte that is wrong."""

from __future__ import annotations

import pytest

from ollama_engine.cli.errors import InputError, UsageError
from ollama_engine.cli.texts import argument, decoded


@pytest.mark.parametrize("text", ["", "plain", "Grüße\n☃", "\x00", "\U0010ffff", "﻿with a mark"])
def test_utf_8_stays_what_it_is(text: str) -> None:
    assert decoded(text.encode(), "x") == text
    assert argument(text, "x") == text
    assert argument(text.encode().decode("ascii", "surrogateescape"), "x") == text  # as the locale C hands it over


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"\xff", "byte 1 (0xff)"),
        (b"Gr\xfc\xdfe", "byte 3 (0xfc)"),
        ("ü".encode() + b"\xfc", "byte 3 (0xfc)"),
        (b"cut \xe2\x98", "byte 5 (0xe2)"),
        (b"one\ntwo\n\x80", "byte 9, in line 3, (0x80)"),
        (b"\xed\xa0\x80", "byte 1 (0xed)"),
    ],
)
def test_the_first_byte_that_is_not_is_told(data: bytes, told: str) -> None:
    with pytest.raises(InputError) as piped:
        decoded(data, "standard input")
    with pytest.raises(UsageError) as typed:
        argument(data.decode("utf-8", "surrogateescape"), "PROMPT")
    for error, what in ((piped, "standard input"), (typed, "PROMPT")):
        assert str(error.value) == f"{what}: {told} is not UTF-8; convert the text, for instance with iconv"
