"""A picture for programs that send data URLs."""

from __future__ import annotations

import base64
import io

from PIL import Image


def _data_url() -> str:
    file = io.BytesIO()
    Image.new("RGB", (64, 64), "red").save(file, "PNG")
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


RED_SQUARE = _data_url()
