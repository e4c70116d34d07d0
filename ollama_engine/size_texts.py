"""Numbers of bytes as people read them."""

from __future__ import annotations

__all__ = ["decimal_size", "size"]


def size(nbytes: int) -> str:
    """Bytes in a unit that people read: 640 bytes, 5.2 MiB."""
    if nbytes < 1024:
        return f"{nbytes} bytes"
    amount = float(nbytes)
    for unit in ("KiB", "MiB", "GiB"):
        amount /= 1024
        if round(amount, 1) < 1024:
            return f"{amount:.1f} {unit}"
    return f"{amount / 1024:.1f} TiB"


def decimal_size(nbytes: int) -> str:
    """Bytes in decimal units, as Ollama writes them: 4.7 GB, 91 MB."""
    for unit, name in ((10**12, "TB"), (10**9, "GB"), (10**6, "MB"), (10**3, "KB")):
        if nbytes >= unit:
            return f"{nbytes // unit} {name}" if nbytes >= 10 * unit else f"{nbytes / unit:.1f} {name}"
    return f"{nbytes} B"
