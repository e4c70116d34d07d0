"""Random templates: their text is plain jinja2's, and trusted characters are the template's own.

Literals of the template are made of capitals and «», what callers pass of small letters and <>. Nothing here changes
letters, so each character of the result tells where it comes from.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
from jinja2.exceptions import TemplateError
from jinja2.ext import LoopControlExtension
from jinja2.sandbox import ImmutableSandboxedEnvironment

from ollama_engine.chat.provenance import trusted_spans
from ollama_engine.chat.sandbox import ChatEnvironment, GenerationBlocks
from tests.support.suite import scaled

DATA: dict[str, Any] = {
    "a": "abc", "b": "a<b>c, a b", "e": "", "m": {"role": "abba", "content": " c, b\n<a> ", "n": None},
    "l": ["a", "<b>", "c c", ""], "d": {"a": "b", "<c>": ["a", 1]},
}  # fmt: skip
LITERALS = ("A", "«B»", "«»", "", " ", "A B,C", ", ", "«", "\\n")
NAMES = ("a", "b", "e", "m.content", "m['role']", "l[1]", "l[2]", "d.a", "m.n", "x")
METHODS = (
    "strip()", "lstrip('a ')", "rstrip()", "split({t})[0]", "split({t})[-1]", "split()[0]", "rsplit({t}, 1)[0]",
    "splitlines()[0]", "replace({t}, {t})", "replace({t}, {t}, 1)", "removeprefix({t})", "removesuffix({t})",
    "partition({t})[2]", "rpartition({t})[0]", "join(l)", "join([{t}, {t}])", "format({t})", "ljust(5)", "center(9)",
    "zfill(4)", "expandtabs()", "encode().decode()",
)  # fmt: skip
FILTERS = (
    "trim", "replace({t}, {t})", "string", "default({t})", "join", "list | join", "list | join({t})", "first", "last",
    "indent(2)", "indent(1, true)", "reverse", "safe", "e", "tojson", "center(8)", "format({t})", "truncate(5, true)",
    "wordwrap(3)", "striptags", "batch(2) | first | join", "map('string') | join", "select | join", "sort | join",
    "unique | join", "list | string", "length", "escape", "forceescape", "urlize",
)  # fmt: skip


class Writer:
    """Writes one random template."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)

    def text(self, depth: int = 0) -> str:
        """An expression."""
        rng = self.rng
        if depth > 3 or rng.random() < 0.3:
            return rng.choice((rng.choice(NAMES), repr(rng.choice(LITERALS)).replace("\\\\n", "\\n")))
        inner = self.text(depth + 1)
        return rng.choice((
            lambda: f"({inner} ~ {self.text(depth + 1)})",
            lambda: f"({inner} + {self.text(depth + 1)})",
            lambda: f"({inner}).{self.filled(rng.choice(METHODS), depth)}",
            lambda: f"({inner} | {self.filled(rng.choice(FILTERS), depth)})",
            lambda: f"({inner})[{rng.choice(('1:', ':2', '-1', '0', '::2', '::-1', '1:-1', '5:'))}]",
            lambda: f"({inner} if {self.text(depth + 1)} else {self.text(depth + 1)})",
            lambda: f"({inner} * {rng.choice((0, 1, 2))})",
            lambda: f"('%s«%s' % ({inner}, {self.text(depth + 1)}))",
            lambda: f"({{'a': {inner}}}['a'])",
            lambda: f"([{inner}, {self.text(depth + 1)}] | join({self.text(depth + 1)}))",
            lambda: f"f({inner})",
        ))()  # fmt: skip

    def filled(self, pattern: str, depth: int) -> str:
        while "{t}" in pattern:
            pattern = pattern.replace("{t}", self.text(depth + 2), 1)
        return pattern

    def statement(self, depth: int = 0) -> str:
        rng = self.rng
        inner = (lambda: self.statement(depth + 1)) if depth < 3 else (lambda: "Z")
        return rng.choice((
            lambda: "{{ " + self.text() + " }}",
            lambda: "{{- " + self.text() + " -}}",
            lambda: rng.choice(("«IM»", "\n", "  ", "AB C")),
            lambda: "{% set x = " + self.text() + " %}{{ x }}",
            lambda: "{% set x %}" + inner() + "{{ a }}{% endset %}{{ x | trim }}",
            lambda: "{% for x in l %}" + inner() + "{{ x }}{% endfor %}",
            lambda: "{% for x in " + self.text() + " %}{{ x }}{% endfor %}",
            lambda: "{% for x, y in d.items() %}{{ x ~ y }}" + inner() + "{% endfor %}",
            lambda: "{% if " + self.text() + " %}" + inner() + "{% else %}" + inner() + "{% endif %}",
            lambda: "{% filter replace('«', b) %}" + inner() + "{% endfilter %}",
            lambda: "{% filter trim %}" + inner() + "{% endfilter %}",
            lambda: "{% generation %}" + inner() + "{% endgeneration %}",
            lambda: "{% call(y) g() %}" + inner() + "{{ y }}{% endcall %}",
            lambda: "{% set ns = namespace(t=" + self.text() + ") %}{% set ns.t = ns.t ~ b %}{{ ns.t }}",
        ))()  # fmt: skip

    def template(self) -> str:
        macros = "{% macro f(t) %}«{{ t }}»{% endmacro %}{% macro g() %}G{{ caller(b) }}{% endmacro %}{% set x = 'X' %}"
        return macros + "".join(self.statement() for _ in range(self.rng.randint(1, 4)))


def plain_environment() -> ImmutableSandboxedEnvironment:
    extensions = [GenerationBlocks, LoopControlExtension]
    made = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=extensions)
    made.filters["tojson"] = ChatEnvironment().filters["tojson"]
    return made


def rendered(environment: Any, source: str) -> str | None:
    try:
        return str(environment.from_string(source).render(DATA))
    except (TemplateError, TypeError, ValueError, AttributeError, IndexError, KeyError):
        return None


@pytest.mark.filterwarnings("ignore::SyntaxWarning")  # of constants such as (5)[0]
@pytest.mark.parametrize("part", range(12))
def test_random_templates(part: int) -> None:
    plain = plain_environment()
    compared = trusted = 0
    for seed in range(part * 100_000, part * 100_000 + scaled(500, quick=10)):
        source = Writer(seed).template()
        found, wanted = rendered(ChatEnvironment(), source), rendered(plain, source)
        assert (found is None) == (wanted is None), source
        if found is None or wanted is None:
            continue
        assert str.__str__(found) == wanted, source
        compared += 1
        for begin, end in trusted_spans(found):
            trusted += 1
            assert not set(found[begin:end]) & set("abc<>"), (source, found[begin:end])
    assert compared > 5
    assert trusted > 5
