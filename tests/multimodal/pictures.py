"""Pictures for tests, drawn by numbers, as files of many kinds."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import PIL.Image
from PIL.Image import Image

ORIENTATION = 0x0112


def drawn(width: int = 23, height: int = 17, mode: str = "RGB", seed: int = 0) -> Image:
    """Smooth colours with some noise: no two corners are alike."""
    y, x = np.mgrid[0:height, 0:width]
    noise = np.random.default_rng(seed).integers(0, 40, (height, width))
    planes = [x * 200 // max(1, width - 1) + noise, y * 200 // max(1, height - 1) + noise, (x + y) % 256, 255 - noise]
    pixels = np.stack(planes, axis=2).astype(np.uint8)
    if mode == "RGBA":
        return PIL.Image.fromarray(pixels)
    image = PIL.Image.fromarray(np.ascontiguousarray(pixels[:, :, :3]))
    return image if mode == "RGB" else image.convert(mode)


def as_file(image: Image, kind: str = "PNG", **options: Any) -> bytes:
    """The bytes of a file."""
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def turned(orientation: int, kind: str = "JPEG", order: str = ">") -> bytes:
    """A file with an orientation in its EXIF data."""
    exif = PIL.Image.Exif()
    exif.endian = order
    exif[ORIENTATION] = orientation
    return as_file(drawn(), kind, exif=exif)


def pixels(image: Image) -> np.ndarray:
    """As an array."""
    return np.asarray(image)


FILES: dict[str, bytes] = {
    "png": as_file(drawn()),
    "png rgba": as_file(drawn(mode="RGBA")),
    "png grey": as_file(drawn(mode="L")),
    "png grey and alpha": as_file(drawn(mode="RGBA").convert("LA")),
    "png black and white": as_file(drawn(mode="1")),
    "png palette": as_file(drawn().quantize(16)),
    "png palette, one colour transparent": as_file(drawn().quantize(16), transparency=3),
    "png palette, many transparent": as_file(drawn().quantize(16), transparency=bytes(range(0, 160, 10))),
    "png, one colour transparent": as_file(drawn(), transparency=drawn().getpixel((3, 3))),
    "png grey, one level transparent": as_file(drawn(mode="L"), transparency=drawn(mode="L").getpixel((3, 3))),
    "jpeg": as_file(drawn(), "JPEG"),
    "jpeg progressive": as_file(drawn(), "JPEG", progressive=True),
    "jpeg grey": as_file(drawn(mode="L"), "JPEG"),
    "jpeg cmyk": as_file(drawn(mode="CMYK"), "JPEG"),
    "webp": as_file(drawn(), "WEBP"),
    "webp rgba": as_file(drawn(mode="RGBA"), "WEBP", lossless=True, exact=True),
    "gif": as_file(drawn(), "GIF"),
    "gif animated": as_file(drawn(), "GIF", save_all=True, append_images=[drawn(seed=1), drawn(seed=2)], duration=50),
    "webp animated": as_file(drawn(), "WEBP", save_all=True, append_images=[drawn(seed=1)], lossless=True),
    "bmp": as_file(drawn(), "BMP"),
    "bmp palette": as_file(drawn().quantize(16), "BMP"),
    "tiff": as_file(drawn(), "TIFF"),
    "tiff rgba": as_file(drawn(mode="RGBA"), "TIFF"),
    "tiff cmyk": as_file(drawn(mode="CMYK"), "TIFF"),
    "tiff lzw": as_file(drawn(), "TIFF", compression="tiff_lzw"),
    "tiff of pages": as_file(drawn(), "TIFF", save_all=True, append_images=[drawn(seed=1)]),
    "mpo": as_file(drawn(), "MPO", save_all=True, append_images=[drawn(seed=1)]),
    "apng": as_file(drawn(), "PNG", save_all=True, append_images=[drawn(seed=1)], duration=50),
    "jpeg 4:2:0": as_file(drawn(), "JPEG", subsampling=2, quality=60),
    "ppm": as_file(drawn(), "PPM"),
    "pgm": as_file(drawn(mode="L"), "PPM"),
    "pbm": as_file(drawn(mode="1"), "PPM"),
    "1 x 1": as_file(drawn(1, 1)),
    "2,000 x 10": as_file(drawn(2_000, 10)),
    **{f"jpeg turned {number}": turned(number) for number in range(1, 9)},
    "png turned": turned(6, "PNG"),
    "webp turned": turned(8, "WEBP", "<"),
    "tiff turned": turned(5, "TIFF"),
}
"""One file of each kind."""
