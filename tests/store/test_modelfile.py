from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ollama_engine.errors import ConfigError
from ollama_engine.store.modelfile import COMMANDS, Command, Modelfile, parse_modelfile, print_modelfile
from tests.support.suite import scaled

EXAMPLE = '''\ufeff# A comment
from llama3.2:1b
  PARAMETER temperature 0.7
parameter STOP "<|end|>"
PARAMETER stop  two words

TEMPLATE """{{ if .System }}
# no comment
{{ .System }}{{ end }}"quoted" """
SYSTEM """"""
ADAPTER ./lora.gguf
LICENSE "one
line"
MESSAGE user Is "this" a question?
MESSAGE assistant """yes"""
REQUIRES 0.14.0
RENDERER qwen3
PARSER qwen3'''


def test_example() -> None:
    for text in (EXAMPLE, EXAMPLE + "\n", EXAMPLE.replace("\n", "\r\n")):
        found = parse_modelfile(text)
        newline = "\r\n" if "\r" in text else "\n"
        assert [(c.kind, c.name, c.value) for c in found.commands] == [
            ("FROM", "", "llama3.2:1b"),
            ("PARAMETER", "temperature", "0.7"),
            ("PARAMETER", "stop", "<|end|>"),
            ("PARAMETER", "stop", "two words"),
            ("TEMPLATE", "", '{{ if .System }}\n# no comment\n{{ .System }}{{ end }}"quoted" '.replace("\n", newline)),
            ("SYSTEM", "", ""),
            ("ADAPTER", "", "./lora.gguf"),
            ("LICENSE", "", f"one{newline}line"),
            ("MESSAGE", "user", 'Is "this" a question?'),
            ("MESSAGE", "assistant", "yes"),
            ("REQUIRES", "", "0.14.0"),
            ("RENDERER", "", "qwen3"),
            ("PARSER", "", "qwen3"),
        ]
        assert found.last("PARAMETER") == "two words"
        assert found.last("NOTHING") is None


@pytest.mark.parametrize(("text", "told"), [
    ("", "has no such line"), ("# FROM x", "has no such line"), ("SYSTEM x", "has no such line"),
    ("FROM x\n\nFRUM y", "line 3: a command is one of FROM, .* got 'FRUM'"), ("FROM", "line 1: FROM has no value"),
    ("FROM x\nSYSTEM\n", "line 2: SYSTEM has no value"), ("FROM x\nPARAMETER stop", "PARAMETER stop has no value"),
    ("FROM x\nPARAMETER", "PARAMETER has no value"), ("FROM x\nMESSAGE tool y", "got the role 'tool'"),
    ('FROM x\nSYSTEM """a\nb', 'line 2: a text that begins with """ ends'), ('FROM "x', 'begins with " ends'),
    ('FROM x\nSYSTEM """a""" b', 'begins with """ ends'),
])  # fmt: skip
def test_mistakes(text: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        parse_modelfile(text)


@settings(max_examples=scaled(1000, quick=150))
@given(st.lists(st.tuples(st.sampled_from(COMMANDS), st.text() | st.text(alphabet='a"\n\r \t#\u2028é', max_size=12))))
def test_what_is_printed_is_read_as_the_same(pairs: list[tuple[str, str]]) -> None:
    names = {"PARAMETER": "stop", "MESSAGE": "user"}
    commands = (Command("FROM", "x"), *(Command(kind, text, names.get(kind, "")) for kind, text in pairs))
    try:
        printed = print_modelfile(Modelfile(commands))
    except ConfigError:
        assert any('"' in text and ("\n" in text or "\r" in text) for _, text in pairs)
        return
    assert parse_modelfile(printed) == Modelfile(commands)


@settings(max_examples=scaled(1000, quick=150))
@given(st.text() | st.text(alphabet='FROMfrom x"\n#', max_size=30))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        found = parse_modelfile(text)
    except ConfigError:
        return
    assert parse_modelfile(print_modelfile(found)) == found
