from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ollama_engine.errors import ConfigError
from ollama_engine.store.names import ModelName
from tests.support.suite import scaled

LETTERS = st.characters(codec="ascii", categories=("Lu", "Ll", "Nd"))


def part(more: str) -> st.SearchStrategy[str]:
    return st.tuples(LETTERS, st.text(LETTERS | st.sampled_from(more), max_size=20)).map("".join)


NAMES = st.builds(ModelName.of_parts, part("._-:"), part("_-"), part("._-"), part("._-"))


@settings(max_examples=scaled(1000, quick=150))
@given(NAMES)
def test_what_a_name_says_is_the_name(name: ModelName) -> None:
    assert ModelName.parse(str(name)) == name
    assert ModelName.parse(name.short).key == name.key
    assert ModelName.parse(f"https://{name}") == name
    assert ModelName.parse(str(name).upper()).key == name.key


@settings(max_examples=scaled(2000, quick=300))
@given(st.text() | st.text(alphabet="aZ0./:\\_-\0", max_size=16))
def test_any_text_is_a_name_or_refused(text: str) -> None:
    """And what is a name stays below the folder of manifests."""
    try:
        name = ModelName.parse(text)
    except ConfigError:
        return
    for found in name.key:
        assert found not in ("", ".", "..")
        assert not set(found) & set("/\\\0")
    assert ModelName.parse(str(name)) == name


@pytest.mark.parametrize(("text", "short"), [
    ("llama3.2", "llama3.2:latest"), ("llama3.2:1b", "llama3.2:1b"), ("me/x", "me/x:latest"),
    ("registry.ollama.ai/library/x:y", "x:y"), ("registry.ollama.ai/me/x:y", "me/x:y"),
    ("hf.co/org/repo:Q4_K_M", "hf.co/org/repo:Q4_K_M"), ("http://localhost:5000/a/b", "localhost:5000/a/b:latest"),
    ("localhost:5000/library/b", "localhost:5000/library/b:latest"),
])  # fmt: skip
def test_short_names(text: str, short: str) -> None:
    assert ModelName.parse(text).short == short


@pytest.mark.parametrize("text", [
    "", " ", ":", "a:", ":b", "a/", "/a", "a//b", "a/b/c/d", "..", "a/..", "../a", "a/../b", "a:..", "a:b:c", "a b",
    "a\n", "a" * 81, "a:" + "b" * 81, "é", "-a", ".a", "a\\b", "a@sha256:" + "0" * 64, "c:\\x", "/etc/passwd", "./a",
])  # fmt: skip
def test_what_is_no_name(text: str) -> None:
    if text == "a\n":  # as Ollama, spaces around a name are none of it
        assert ModelName.parse(text).model == "a"
        return
    with pytest.raises(ConfigError, match="model is a name such as"):
        ModelName.parse(text)
