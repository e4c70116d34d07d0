"""Whatever callers pass as an image becomes the same bytes, or an ImageError that says what was expected."""

from __future__ import annotations

import io
import os
import sys
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import PIL.Image
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as numpy_strategies

from ollama_engine.errors import ImageError
from ollama_engine.multimodal.image import MAX_PIXELS, read_image
from ollama_engine.multimodal.source import image_bytes, is_picture
from tests.multimodal.pictures import FILES, as_file, drawn, pixels, turned
from tests.support.suite import scaled
from tests.support.waiting import join

EXPECTED = r"an image is a path, the bytes of a file, a PIL.Image, or an array \[height, width, 3\]; got "


def read(source: Any) -> np.ndarray:
    return pixels(read_image(image_bytes(source)))


def test_files_are_their_bytes(tmp_path: Path) -> None:
    data = FILES["jpeg"]
    (tmp_path / "a b.jpg").write_bytes(data)
    path = tmp_path / "a b.jpg"
    sources: list[Any] = [data, bytearray(data), memoryview(data), io.BytesIO(data), path, str(path)]
    half_read = io.BytesIO(data)
    half_read.read(10)
    for source in [*sources, half_read]:
        assert image_bytes(source) == data


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "L", "LA", "1", "P", "CMYK", "YCbCr", "HSV", "I", "F", "La", "RGBa"])
def test_pictures_of_every_mode(mode: str) -> None:
    by_way = {"LA": "RGBA", "RGBa": "RGBA", "La": "LA"}.get(mode, "RGB")
    image = (drawn(mode="RGBA").convert("LA") if by_way == "LA" else drawn(mode=by_way)).convert(mode)
    expected = (image.convert(by_way) if mode in ("La", "RGBa") else image).convert("RGB")
    np.testing.assert_array_equal(pixels(read_image(image_bytes(image)).convert("RGB")), pixels(expected))


@pytest.mark.parametrize("name", FILES)
def test_an_opened_file_is_its_picture(name: str) -> None:
    """Turned as it says, and with its transparency: the same as the file itself."""
    with PIL.Image.open(io.BytesIO(FILES[name])) as image:
        np.testing.assert_array_equal(read(image), read(FILES[name]))


def test_a_larger_picture_than_is_decoded_is_halved() -> None:
    """One that is decoded already may be of any size up to MAX_PIXELS; as a file it would be refused."""
    columns = np.arange(8_000).astype(np.uint8) // 2
    found = read(np.broadcast_to(columns, (4_200, 8_000)))
    np.testing.assert_array_equal(found[:, :, 0], np.broadcast_to(columns[::2], (2_100, 4_000)))


def test_the_same_picture_is_the_same_bytes() -> None:
    assert image_bytes(drawn()) == image_bytes(drawn()) == image_bytes(pixels(drawn()))
    assert image_bytes(drawn(mode="RGBA")) == image_bytes(pixels(drawn(mode="RGBA")))
    assert image_bytes(drawn()) != image_bytes(drawn(seed=1))


def test_what_a_caller_changes_later_changes_nothing() -> None:
    array, data = pixels(drawn()).copy(), bytearray(FILES["png"])
    image = drawn()
    taken = image_bytes(array), image_bytes(image), image_bytes(data)
    expected = [read(each) for each in taken]
    array[:] = 0
    image.paste(0, (0, 0, 10, 10))
    data[:] = bytes(len(data))
    for found, wanted in zip(taken, expected, strict=True):
        np.testing.assert_array_equal(read(found), wanted)


def test_arrays() -> None:
    colours, grey, alpha = pixels(drawn()), pixels(drawn(mode="L")), pixels(drawn(mode="RGBA"))
    np.testing.assert_array_equal(read(colours), colours)
    np.testing.assert_array_equal(read(alpha), alpha)
    for same in (grey, grey[:, :, None]):
        np.testing.assert_array_equal(read(same), np.repeat(grey[:, :, None], 3, axis=2))
    for dtype in (np.float16, np.float32, np.float64, ">f4"):
        np.testing.assert_array_equal(read((colours / 255).astype(dtype)), colours)
    np.testing.assert_array_equal(read(colours[::-1, ::2]), colours[::-1, ::2])
    np.testing.assert_array_equal(read(np.asfortranarray(colours)), colours)
    np.testing.assert_array_equal(read(np.eye(5, dtype=bool))[:, :, 0], np.eye(5, dtype=np.uint8) * 255)
    np.testing.assert_array_equal(read(np.zeros((1, 1), np.uint8)), np.zeros((1, 1, 3), np.uint8))


@pytest.mark.parametrize(("source", "message"), [
    (None, EXPECTED + "NoneType"),
    (5, EXPECTED + "int"),
    ([b"", b""], EXPECTED + "list; give one image after the other"),
    (np.zeros((2, 3, 4, 3), np.uint8), r"got shape \[2, 3, 4, 3\]"),
    (np.zeros(5, np.uint8), r"got shape \[5\]"),
    (np.zeros((3, 8, 9), np.uint8), r"got shape \[3, 8, 9\]; channels come last"),
    (np.zeros((8, 9, 2), np.uint8), r"got shape \[8, 9, 2\]"),
    (np.zeros((0, 9, 3), np.uint8), "no pixels: it is 9 x 0"),
    (np.zeros((8, 9, 3), np.int64), "uint8, or floats from 0 to 1, got int64"),
    (np.full((8, 9), 1.5), "from 0 to 1, got 1.5 to 1.5"),
    (np.full((8, 9), np.nan), "from 0 to 1, got nan to nan"),
    (np.broadcast_to(np.uint8(0), (10_000, 10_000)), "million are read at most"),
    (np.array([["a"]]), "got <U1"),
    ("", "cannot be read: No such file"),
    ("no/such.png", "no/such.png cannot be read: No such file or directory$"),
    ("a\0b.png", "cannot be read: embedded null"),
    ("https://example.com/cat.png", "No such file or directory; nothing is downloaded"),
    ("data:image/png;base64,AAAA", "; give the bytes of a data URL, decoded"),
    ("x" * 5_000, "x\\.\\.\\.' cannot be read: File name too long"),
])  # fmt: skip
def test_what_is_no_image(source: Any, message: str) -> None:
    with pytest.raises(ImageError, match=message):
        image_bytes(source)


DTYPES = st.one_of(
    numpy_strategies.integer_dtypes(), numpy_strategies.unsigned_integer_dtypes(), numpy_strategies.floating_dtypes(),
    numpy_strategies.boolean_dtypes(), numpy_strategies.complex_number_dtypes(), numpy_strategies.datetime64_dtypes(),
    numpy_strategies.byte_string_dtypes(), numpy_strategies.unicode_string_dtypes(),
)  # fmt: skip
SHAPES = numpy_strategies.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5)


@settings(max_examples=scaled(2_000, quick=150))
@given(numpy_strategies.arrays(DTYPES, SHAPES))
def test_any_array_is_an_image_or_an_error(array: np.ndarray) -> None:
    try:
        found = read(array)
    except ImageError:
        return
    assert found.shape[:2] == array.shape[:2]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names")
def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    """Nobody may ever write into it, and no timeout ends the wait."""
    os.mkfifo(tmp_path / "pipe.png")
    with pytest.raises(ImageError, match=r"pipe.png is no file"):
        image_bytes(tmp_path / "pipe.png")


def test_paths_of_something_else(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match=r"Is a directory|is no file"):
        image_bytes(tmp_path)
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(ImageError, match=r"notes.txt is no image that can be read, but begins with"):
        image_bytes(tmp_path / "notes.txt")
    with pytest.raises(ImageError, match="/dev/zero is no file"):
        image_bytes("/dev/zero")
    large = tmp_path / "large.png"
    large.write_bytes(FILES["png"])
    os.truncate(large, 8 * MAX_PIXELS + 1)  # sparse
    with pytest.raises(ImageError, match="has 715827881 bytes, more than any image"):
        image_bytes(large)
    (tmp_path / "empty.png").write_bytes(b"")
    with pytest.raises(ImageError, match="is empty"):
        read_image(image_bytes(tmp_path / "empty.png"))


def test_pictures_that_cannot_be_read() -> None:
    cut = PIL.Image.open(io.BytesIO(as_file(drawn(300, 300), "JPEG")[:2_000]))
    with pytest.raises(ImageError, match=r"the picture cannot be read: .*truncated"):
        image_bytes(cut)
    closed = PIL.Image.open(io.BytesIO(FILES["png"]))
    closed.close()
    with pytest.raises(ImageError, match="the picture cannot be read"):
        image_bytes(closed)
    with pytest.raises(ImageError, match="no pixels"):
        image_bytes(PIL.Image.new("RGB", (0, 5)))


def test_one_opened_file_in_many_threads() -> None:
    """Pillow decodes a file at the first look at its pixels."""
    data = as_file(drawn(400, 300), "PNG")
    expected = read(data)
    for _ in range(5):
        image, pictures = PIL.Image.open(io.BytesIO(data)), []
        threads = [threading.Thread(target=lambda: pictures.append(read(image))) for _ in range(6)]  # noqa: B023
        for thread in threads:
            thread.start()
        join(*threads)
        assert len(pictures) == len(threads)
        for each in pictures:
            np.testing.assert_array_equal(each, expected)


def test_what_is_told_from_texts_and_lists() -> None:
    assert all(map(is_picture, (drawn(), pixels(drawn()), Path("x"), io.BytesIO(), bytearray(), memoryview(b""))))
    assert not any(map(is_picture, ("x", b"x", [], {}, 5, None)))
    assert read(turned(6)).shape == (23, 17, 3)


def test_while_another_thread_imports_pillow_nothing_is_a_picture_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its module is there already, without its class: the first two requests with images may come at once."""
    monkeypatch.setitem(sys.modules, "PIL.Image", ModuleType("PIL.Image"))
    assert not is_picture("a text")
    assert is_picture(Path("a"))
