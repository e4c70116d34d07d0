"""Where images stand in a prompt."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ollama_engine.errors import ConfigError
from ollama_engine.runner.request.images import with_images, with_images_each
from ollama_engine.runner.request.prompts import has_media
from ollama_engine.segments import Media, Text, Tokens

A, B, C = (Media(each) for each in (b"a", b"b", b"c"))


def text(given: str) -> Text:
    return Text(given, parse_special=True)


@pytest.mark.parametrize(("prompt", "images", "expected"), [
    ("What?", "a", [A, text("What?")]),
    ("What?", "ab", [A, B, text("What?")]),
    ("", "a", [A]),
    ("Is [img] like [img]?", "ab", [text("Is "), A, text(" like "), B, text("?")]),
    ("Is [img-1] like [img-0]?", "ab", [text("Is "), B, text(" like "), A, text("?")]),
    ("[img-0]", "a", [A]),
    ("[img][img]", "ab", [A, B]),
    ("[img-0] and [img-0]", "a", [A, text(" and "), A]),
    ("[img] [img-0] [img]", "abc", [B, text(" "), A, text(" "), C]),
    ("[img-00]", "a", [A]),
    ("[IMG] [img-] [img-x] [ img] [img -0]", "a", [A, text("[IMG] [img-] [img-x] [ img] [img -0]")]),
])  # fmt: skip
def test_markers(prompt: str, images: str, expected: list[Any]) -> None:
    assert with_images(prompt, [each.encode() for each in images]) == expected


def test_a_number_of_any_length_is_read() -> None:
    """Python raises ValueError for one of more than 4300 digits."""
    assert with_images("[img-" + "0" * 5000 + "]", [b"a"]) == [A]
    for digits in ("9" * 10, "9" * 5000):
        with pytest.raises(ConfigError, match=r"has a marker \[img-1073741824\], but"):
            with_images(f"[img-{digits}]", [b"a"])


@pytest.mark.parametrize("images", [None, [], ()])
@pytest.mark.parametrize("prompt", ["[img] and [img-0]", [1, 2], [Text("[img]"), A], np.array([1, 2])])
def test_without_images_nothing_is_a_marker(prompt: Any, images: Any) -> None:
    assert with_images(prompt, images) is prompt


@pytest.mark.parametrize(("prompt", "n", "told"), [
    ("[img]", 2, r"the prompt has 1 marker for 2 images; write \[img\] for each image, write \[img-0\], \[img-1\] by"),
    ("[img] [img]", 1, "the prompt has 2 markers for 1 image;"),
    ("[img-0]", 2, "the prompt has 1 marker for 2 images"),
    ("[img-0] [img]", 1, "the prompt has 2 markers for 1 image;"),
    ("[img-2]", 2, r"the prompt has a marker \[img-2\], but images has 2 images: \[img-0\] is the first"),
    ("[img-1] [img-9999999999999]", 1, r"a marker \[img-1\], but images has 1 image:"),
])  # fmt: skip
def test_markers_that_do_not_match(prompt: str, n: int, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        with_images(prompt, [b"x"] * n)


@pytest.mark.parametrize(("prompt", "images", "told"), [
    ("x", "cat.png", r"images is a list of images, got str; wrap it in \[...\]"),
    ("x", b"cat", "a list of images, got bytes"),
    ("x", np.zeros((2, 2)), "a list of images, got ndarray"),
    ([1, 2], [b"x"], r"images are for a prompt that is one text; .* a prompt in segments: \[Media\(...\), Tokens"),
    ([Tokens([1]), A], [b"x"], "into its segments, as Media"),
])  # fmt: skip
def test_what_takes_no_images(prompt: Any, images: Any, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        with_images(prompt, images)


def test_several_prompts_have_a_list_each() -> None:
    assert with_images_each(["x", "y [img]", "z"], [[b"a"], [b"b"], []]) == [[A, text("x")], [text("y "), B], "z"]
    assert with_images_each(["x", "y"], [[b"a"], None]) == [[A, text("x")], "y"]
    prompts = ["x [img]", "y"]
    assert with_images_each(prompts, None) is prompts
    assert with_images_each("x", [b"a"]) == [A, text("x")]
    for wrong in ([b"a", b"b"], [[b"a"]], [b"a"], [[b"a"], b"b"]):
        with pytest.raises(ConfigError, match="images of 2 prompts are as many lists, one for each prompt"):
            with_images_each(["x", "y"], wrong)
    with pytest.raises(ConfigError, match=r"^prompts\[1\]: the prompt has 1 marker for 2 images"):
        with_images_each(["x", "[img]"], [[], [b"a", b"b"]])


@given(st.lists(st.sampled_from(["a", "[img]", "[img-0]", "[img-1]", "[img-2]", " ", "[", "]", "img"]), max_size=8),
       st.integers(0, 3))  # fmt: skip
def test_any_text_has_every_image_or_an_error(pieces: list[str], n: int) -> None:
    prompt, images = "".join(pieces), [bytes([number]) for number in range(n)]
    try:
        found = with_images(prompt, images)
    except ConfigError:
        return
    if not n:
        assert found == prompt
        return
    assert {part.data for part in found if isinstance(part, Media)} == set(images)  # type: ignore[union-attr]
    kept = "".join(part.text for part in found if isinstance(part, Text))  # type: ignore[union-attr]
    assert kept in (
        prompt,
        prompt.replace("[img]", "").replace("[img-0]", "").replace("[img-1]", "").replace("[img-2]", ""),
    )


def test_what_has_media() -> None:
    assert has_media([Text("x"), A])
    assert has_media(["x", [A]])  # type: ignore[list-item]
    assert not has_media("x")
    assert not has_media([1, 2])
    assert not has_media([])
    assert not has_media(["x", "y"])
