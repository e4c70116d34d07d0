"""GGUF headers, and the vocabularies that they describe."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ollama_engine.errors import EngineError, ModelFormatError
from ollama_engine.ml.gguf.gguf_file import GGUFFile
from ollama_engine.tokenizer import from_metadata
from tests.fuzz.targets.tokenizer import check_text, vocabularies
from tests.ml.gguf.gguf_bytes import F32, STRING, File, array, kv
from tests.ml.gguf.gguf_mutants import originals, read_everything

WORDS = (
    b"GGUF", b"general.architecture", b"general.alignment", b"split.count", b"split.no", b"split.tensors.count",
    b"tokenizer.ggml.model", b"tokenizer.ggml.tokens", b"tokenizer.ggml.merges", b"tokenizer.ggml.scores",
    b"tokenizer.ggml.token_type", b"tokenizer.ggml.pre", b"tokenizer.ggml.bos_token_id", b"gpt2", b"llama", b"bert",
    b"t5", b"llama-bpe", b"\x20\0\0\0\0\0\0\0", b"\xff\xff\xff\xff\xff\xff\xff\xff", b"\0\0\0\0\0\0\0\x80",
)  # fmt: skip


def seeds() -> Iterable[bytes]:
    yield from originals()
    yield from (_file(metadata) for metadata in vocabularies(brief=True).values())


def _file(metadata: dict[str, object]) -> bytes:
    """The header that holds these metadata."""
    values = []
    for key, value in metadata.items():
        if isinstance(value, str):
            values.append(kv(key, STRING, value))
        elif isinstance(value, bool):
            values.append(kv(key, 7, value))
        elif isinstance(value, int):
            values.append(kv(key, 4, value))
        elif isinstance(value, bytes):
            values.append(array(key, 0, list(value)))
        else:
            given = list(value)  # type: ignore[call-overload]
            kind = STRING if isinstance(given[0], str) else F32 if isinstance(given[0], float) else 5
            values.append(array(key, kind, given))
    return File(values).bytes()


@contextmanager
def opened(folder: Path) -> Iterator[Callable[[bytes], bool]]:
    path = folder / "header.gguf"

    def run(data: bytes) -> bool:
        path.write_bytes(data)
        try:
            read_everything(path, len(data))
        except ModelFormatError:
            return False
        with GGUFFile(path) as file:
            try:
                tokenizer = from_metadata(file.metadata)
            except ModelFormatError:
                return True
        try:
            check_text(tokenizer, "Hello  wörld\n<s>1234")
        except EngineError:
            return True
        return True

    yield run
