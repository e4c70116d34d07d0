"""Image files of every kind become the picture that transformers' load_image makes of them, or an ImageError."""

from __future__ import annotations

import io
import struct
import threading
import tracemalloc
import warnings
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import PIL.ImageFile
import PIL.ImageOps
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ollama_engine.errors import ImageError
from ollama_engine.multimodal.formats import is_image
from ollama_engine.multimodal.image import MAX_DECODED, on_white, read_image
from ollama_engine.multimodal.resampling import FILTERS
from tests.multimodal.pictures import FILES, as_file, drawn, pixels
from tests.support.suite import scaled
from tests.support.waiting import join


def loaded(data: bytes) -> np.ndarray:
    """The steps of transformers' load_image, in its own words."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        image = PIL.ImageOps.exif_transpose(PIL.Image.open(io.BytesIO(data)))
        return np.asarray(image.convert("RGB"))


@pytest.mark.parametrize("name", FILES)
def test_colours_are_those_of_load_image(name: str) -> None:
    image = read_image(FILES[name])
    np.testing.assert_array_equal(pixels(image.convert("RGB")), loaded(FILES[name]))


def test_transparency_is_kept_where_there_is_some() -> None:
    modes = {name: read_image(data).mode for name, data in FILES.items()}
    transparent = {name for name, mode in modes.items() if mode == "RGBA"}
    assert transparent == {
        "png rgba", "png grey and alpha", "png palette, one colour transparent", "png palette, many transparent",
        "png, one colour transparent", "png grey, one level transparent", "webp rgba", "tiff rgba",
    }  # fmt: skip
    opaque = drawn(mode="RGBA")
    opaque.putalpha(255)
    assert read_image(as_file(opaque)).mode == "RGB"


def test_a_transparent_picture_on_white() -> None:
    """As the processors of Mllama and Pixtral put it."""
    image = drawn(mode="RGBA")
    white = PIL.Image.new("RGBA", image.size, (255, 255, 255))
    expected = PIL.Image.alpha_composite(white, image).convert("RGB")
    np.testing.assert_array_equal(pixels(on_white(read_image(as_file(image)))), pixels(expected))
    assert on_white(drawn()).mode == "RGB"


def test_an_animation_is_its_first_frame() -> None:
    for name in ("gif animated", "webp animated"):
        found = pixels(read_image(FILES[name])).astype(int)
        assert np.abs(found - pixels(drawn())).mean() < 12  # 256 colours
        assert np.abs(found - pixels(drawn(seed=1))).mean() > np.abs(found - pixels(drawn())).mean()


def test_16_bits_of_grey_keep_their_upper_byte() -> None:
    """Where load_image cuts off at 255, so that nearly everything is white."""
    levels = np.arange(0, 65536, 173, dtype=np.uint16)[:378].reshape(18, 21)
    for kind in ("PNG", "TIFF", "PPM"):
        found = pixels(read_image(as_file(PIL.Image.fromarray(levels), kind)))
        np.testing.assert_array_equal(found, np.repeat((levels >> 8).astype(np.uint8)[:, :, None], 3, axis=2))


def test_an_orientation_in_xmp() -> None:
    for text in ('tiff:Orientation="6"', "<tiff:Orientation>6</tiff:Orientation>"):
        data = as_file(drawn(), "JPEG", xmp=f"<x:xmpmeta {text}/>".encode())
        assert read_image(data).size == (17, 23)
        np.testing.assert_array_equal(pixels(read_image(data)), loaded(data))


@pytest.mark.parametrize("exif", [
    b"Exif\0\0", b"Exif\0\0II", b"Exif\0\0II*\0\xff\xff\xff\xff", b"Exif\0\0II*\0\x08\0\0\0\xff\xff", b"junk",
    b"Exif\0\0II*\0\x08\0\0\0\x05\0\x10\x01\x02\0\x40\0\0\0\xff\xff\0\0",
    b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x04\0\0\0\x01\0\0\0\x06",
    b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x09\0\0",
])  # fmt: skip
def test_damaged_exif_turns_nothing(exif: bytes) -> None:
    for kind, options in (("PNG", {}), ("WEBP", {"lossless": True}), ("JPEG", {"quality": 95})):
        data = as_file(drawn(), kind, exif=exif, **options)
        plain = as_file(drawn(), kind, **options)
        np.testing.assert_array_equal(pixels(read_image(data)), pixels(read_image(plain)))


# -- what is no image --------------------------------------------------------------------------------------------------


def bomb(width: int, height: int) -> bytes:
    """A PNG file of a few hundred bytes that describes a picture of any size."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    rows = zlib.compress(bytes(100_000))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


@pytest.mark.parametrize(("size", "message"), [
    ((5_800, 5_800), "34 million, and 34 million are read at most, of a JPEG in one scan 89 million; make it smaller"),
    ((9_400, 9_400), "88 million, and 34 million are read at most, of a JPEG in one scan 89 million; make it smaller"),
    ((9_460, 9_460), "89 million are read at most; make it smaller"),
    ((2**31 - 1, 2**31 - 1), "89 million are read at most; make it smaller"),
    ((1, 80_000_000), "one side is at most 200 times as long as the other; cut it"),
    ((201, 1), "one side is at most 200 times as long as the other; cut it"),
])  # fmt: skip
def test_a_decompression_bomb_is_refused_before_it_is_decoded(size: tuple[int, int], message: str) -> None:
    read_image(FILES["png"])  # imports
    tracemalloc.start()
    try:
        with pytest.raises(ImageError, match=message):
            read_image(bomb(*size))
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_many_pixels_below_the_limit_are_read_without_a_warning() -> None:
    """Warnings are errors here. A picture of 9,000 x 9,000 is cut off, so that nothing that large is decoded."""
    with pytest.raises(ImageError, match="cut off"):
        read_image(bomb(5_790, 5_790))


def large_jpeg(**options: Any) -> tuple[bytes, np.ndarray]:
    """A grey JPEG of 36 million pixels, and what each of its blocks of 10 x 10 pixels shows."""
    levels = np.random.default_rng(7).integers(0, 255, (600, 600), np.uint8)
    return as_file(PIL.Image.fromarray(levels.repeat(10, 0).repeat(10, 1)), "JPEG", **options), levels


def test_a_large_jpeg_is_decoded_at_half_of_its_size() -> None:
    data, levels = large_jpeg(quality=90)
    assert MAX_DECODED < 6_000**2
    image = read_image(data)
    assert image.size == (3_000, 3_000)
    middles = pixels(image)[2::5, 2::5, 0].astype(int)
    assert np.abs(middles - levels).mean() < 6


def test_a_large_jpeg_whose_coefficients_would_stay_is_refused() -> None:
    """A progressive one, and one whose first scan has a part of the components."""
    progressive, _ = large_jpeg(progressive=True)
    two_scans, _ = large_jpeg()
    start = two_scans.index(b"\xff\xc0")  # SOF0 says three components, where the scan has one
    two_scans = (
        two_scans[:start]
        + b"\xff\xc0\0\x11"
        + two_scans[start + 4 : start + 9]
        + b"\x03"
        + (b"\1\x11\0\2\x11\0\3\x11\0" + two_scans[start + 13 :])
    )
    for data in (progressive, two_scans):
        with pytest.raises(ImageError, match=r"6000 x 6000 pixels, 36 million, and 34 million are read at most"):
            read_image(data)


@pytest.mark.parametrize(("data", "message"), [
    (b"", "the image is empty"),
    (b"GIF89a", "damaged or cut off"),
    (b"hello, world", r"it is no image that can be read, but begins with b'hello, w'; images are PNG, JPEG"),
    (b"%!PS-Adobe-3.0 EPSF-3.0", "it is no image that can be read"),
    (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "it is no image that can be read"),
    (b"\0\0\0\x24ftypheic\0\0\0\0mif1", "it is a HEIC file, which is not read; images are PNG, JPEG"),
    (b"P6 nonsense", "damaged or cut off"),
    (bomb(0, 5), "."),
    (FILES["png"][:-30], "damaged or cut off"),
    (FILES["jpeg"][:400], "damaged or cut off"),
    (FILES["webp"][:60], "damaged or cut off"),
    (FILES["ppm"][:60], "damaged or cut off"),
])  # fmt: skip
def test_what_is_no_image(data: bytes, message: str) -> None:
    with pytest.raises(ImageError, match=message):
        read_image(data)


def test_every_file_cut_anywhere_is_an_image_or_an_error() -> None:
    for name, data in FILES.items():
        for end in range(0, len(data), max(1, len(data) // scaled(200, quick=25))):
            try:
                read_image(data[:end])
            except ImageError:
                continue
            assert end > 16, name


@settings(max_examples=scaled(4_000, quick=300))
@given(
    st.sampled_from([name for name, data in FILES.items() if len(data) < 20_000]),
    st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(0, 255)), max_size=12),
    st.integers(0, 1 << 16),
)
def test_mutated_files_raise_nothing_else(name: str, changes: list[tuple[int, int]], cut: int) -> None:
    data = bytearray(FILES[name])
    for at, value in changes:
        data[at % min(len(data), 400 if at % 2 else len(data))] = value
    try:
        picture = read_image(bytes(data[: max(1, cut % (2 * len(data)))]))
    except ImageError:
        return
    assert picture.mode in ("RGB", "RGBA")
    assert pixels(picture).size > 0


@settings(max_examples=scaled(2_000, quick=200))
@given(st.binary(max_size=400), st.sampled_from(["png", "jpeg", "webp", "gif", "bmp", "tiff", "ppm"]))
def test_random_bytes_raise_nothing_else(data: bytes, begin: str) -> None:
    messages = ["."]
    for given_bytes in (data, FILES[begin][:12] + data):
        try:
            read_image(given_bytes)
        except ImageError as error:
            messages.append(str(error))
    assert all(messages)


# -- who else is there -------------------------------------------------------------------------------------------------


def test_threads_read_at_once_and_change_nothing() -> None:
    expected = {name: pixels(read_image(data)) for name, data in FILES.items()}
    state = (PIL.Image.MAX_IMAGE_PIXELS, PIL.ImageFile.LOAD_TRUNCATED_IMAGES, list(warnings.filters))
    failed: list[BaseException] = []

    def read_all() -> None:
        try:
            for name, data in FILES.items():
                np.testing.assert_array_equal(pixels(read_image(data)), expected[name])
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=read_all) for _ in range(6)]
    for thread in threads:
        thread.start()
    join(*threads)
    assert not failed
    assert state == (PIL.Image.MAX_IMAGE_PIXELS, PIL.ImageFile.LOAD_TRUNCATED_IMAGES, list(warnings.filters))


def test_a_file_is_told_by_its_first_bytes(tmp_path: Path) -> None:
    assert {name: is_image(data[:16]) for name, data in FILES.items()} == dict.fromkeys(FILES, True)
    assert not is_image(b"")
    assert not is_image(b"P7\n")
    assert not is_image(b"P1x")


def test_filters_have_the_numbers_of_pillow() -> None:
    assert {name: PIL.Image.Resampling[name.upper()] for name in FILTERS} == FILTERS
