"""One operation of a template cannot fill the memory; what templates do write goes on working."""

from __future__ import annotations

import pytest
from jinja2.exceptions import SecurityError

from ollama_engine.chat.sandbox import ChatEnvironment

TOO_LARGE = (
    "[[1]] | tojson(indent=10**9)",
    "[1] | tojson(separators=('a' * 1000, ':'))",
    "'a' * 1000000000",
    "1000000000 * 'a'",
    "[1] * 1000000000",
    "10 ** 1000000000",
    "'%1000000000d' % 1",
    "'%.1000000000f' % 1",
    "'%*d' % (1000000000, 1)",
    "'{:1000000000}'.format(1)",
    "'{:>1000000000.2f}'.format(1)",
    "'{:{}}'.format(1, 1000000000)",
    "'{:{w}}'.format(1, w=1000000000)",
    "'{x:{w}}'.format_map({'x': 1, 'w': 1000000000})",
    "'a'.center(1000000000)",
    "'a'.ljust(1000000000)",
    "'a'.rjust(width=1000000000)",
    "'a'.zfill(1000000000)",
    "'\t'.expandtabs(1000000000)",
    "'a' | center(1000000000)",
    "'a' | indent(1000000000, true)",
    "[1] | batch(1000000000, 0) | list",
    "'%1000000000d' | format(1)",
)

HARMLESS = {
    "'-' * 3": "---",
    "2 ** 40": "1099511627776",
    "'20241231235959: %s' % 1": "20241231235959: 1",
    "'%d' % 123456789012": "123456789012",
    "'{:d}, {:>4}'.format(123456789012, 1)": "123456789012,    1",
    "'%5.2f|%d' | format(1.5, 123456789012)": " 1.50|123456789012",
    "'a'.center(5)": "  a  ",
    "'a\nb' | indent(2)": "a\n  b",
    "[1, 2, 3] | batch(2) | list": "[[1, 2], [3]]",
}


def rendered(expression: str) -> str:
    return str(ChatEnvironment().from_string("{{ " + expression + " }}").render())


@pytest.mark.parametrize("expression", TOO_LARGE)
def test_what_would_fill_the_memory_is_refused(expression: str) -> None:
    with pytest.raises(SecurityError, match="at once"):
        rendered(expression)


@pytest.mark.parametrize("expression", HARMLESS)
def test_what_templates_write_is_what_it_was(expression: str) -> None:
    assert rendered(expression) == HARMLESS[expression]
