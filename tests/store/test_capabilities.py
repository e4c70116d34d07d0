"""Which abilities templates and vocabularies show."""

from __future__ import annotations

import pytest

from ollama_engine.store.capabilities import file_abilities, go_abilities

LOOP = "{% for m in messages %}{{ m.content }}{% endfor %}"


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (None, set()),
        (LOOP, set()),
        ("{# tools and thinking #}You are good at thinking about tools." + LOOP, set()),
        ("{% if tools %}{{ tools | tojson }}{% endif %}" + LOOP, {"tools"}),
        ("{% if enable_thinking %}x{% endif %}" + LOOP, {"thinking"}),
        (LOOP + "{% if add_generation_prompt %}<think>\n{% endif %}", {"thinking"}),
        ("{% if tools %}<tool_call>{% endif %}{{ '<|im_start|>' }}" + LOOP, {"tools"}),
        ("{% broken", set()),
    ],
)
def test_templates_of_files(template: str | None, expected: set[str]) -> None:
    assert file_abilities({}, template) == expected


@pytest.mark.parametrize("key", ["tokenizer.ggml.fim_pre_token_id", "tokenizer.ggml.prefix_token_id"])
def test_tokens_for_the_middle(key: str) -> None:
    assert file_abilities({key: 5}, LOOP) == {"insert"}


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{{ .Prompt }}", set()),
        ("{{ range .Messages }}{{ .Content }}{{ end }}", set()),
        ("{{ if .Tools }}{{ .Tools }}{{ end }}{{ .Prompt }}", {"tools"}),
        ("{{ if .Suffix }}<PRE>{{ .Prompt }}<SUF>{{ .Suffix }}{{ else }}{{ .Prompt }}{{ end }}", {"insert"}),
        ("{{ if $.Think }}x{{ end }}{{ .Prompt }}", {"thinking"}),
        ("about .Tools and .Think{{ .Prompt }}", set()),
        ("{{ if", set()),
    ],
)
def test_templates_of_modelfiles(template: str, expected: set[str]) -> None:
    assert go_abilities(template) == expected
