"""GGUF files by the gguf package."""

from __future__ import annotations

import gguf

__all__ = ["write_and_close"]


def write_and_close(writer: gguf.GGUFWriter) -> None:
    """Write the file whose metadata and tensors the writer has."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
