"""Numbers of bytes as people read them."""

from __future__ import annotations

import pytest

from ollama_engine.size_texts import decimal_size, size


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [(0, "0 bytes"), (1023, "1023 bytes"), (1024, "1.0 KiB"), ((1 << 20) - 1, "1.0 MiB"), (5 << 20, "5.0 MiB"),
     (3 << 29, "1.5 GiB"), (1 << 40, "1.0 TiB"), (1 << 52, "4096.0 TiB")],
)  # fmt: skip
def test_size(nbytes: int, text: str) -> None:
    assert size(nbytes) == text


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [(999, "999 B"), (1000, "1.0 KB"), (9_999, "10.0 KB"), (91_000_000, "91 MB"), (2_019_393_189, "2.0 GB"),
     (40_000_000_000, "40 GB"), (1_500_000_000_000, "1.5 TB")],
)  # fmt: skip
def test_decimal_size(nbytes: int, text: str) -> None:
    assert decimal_size(nbytes) == text
