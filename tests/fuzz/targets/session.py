"""Session files. Their checksum is made anew, or no damage would get further."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ollama_engine import Engine, SamplingParams
from ollama_engine.errors import EngineError
from tests.fuzz.targets.model import SMALL
from tests.support.tiny import write_tiny_llama

WORDS = (
    b'"fingerprint"', b'"dtype"', b'"row_bytes"', b'"n_tokens"', b'"groups"', b'"media"', b'"length"', b'"exact"',
    b'"cells"', b'"namespace"', b"null", b"[[", b"]]", b"[0, 1]", b"-1", b"16777216", b"4294967296", b"1e9", b"true",
    b"f16", b"f32", b"q8_0", b"\\ud800", b"\0\0\0\0", b"\xff\xff\xff\x7f", b"\xff\xff\xff\xff",
)  # fmt: skip
DIGEST = 32
GREEDY = SamplingParams(temperature=0, max_tokens=2)


def _engine(folder: Path) -> Engine:
    return Engine(write_tiny_llama(folder / "tiny.gguf", n_embd=32, n_ff=32, n_head=1, n_head_kv=1, n_layer=1).path,
                  **SMALL)  # fmt: skip


def seeds() -> Iterable[bytes]:
    with tempfile.TemporaryDirectory() as folder, _engine(Path(folder)) as engine:
        for text in ("", "ab", "one two three"):
            with engine.session() as session:
                session.append(text)
                if text:
                    session.generate(GREEDY)
                session.save(Path(folder) / "saved", overwrite=True)
                yield (Path(folder) / "saved").read_bytes()[:-DIGEST]


@contextmanager
def opened(folder: Path) -> Iterator[Callable[[bytes], bool]]:
    with _engine(folder) as engine:
        path = folder / "session"

        def run(data: bytes) -> bool:
            path.write_bytes(data + hashlib.sha256(data).digest())
            try:
                session = engine.load_session(path)
            except EngineError:
                return False
            with session:
                assert isinstance(session.text, str)
                try:
                    assert len(session.generate(GREEDY).tokens) <= 2
                except EngineError:
                    return False
            return True

        yield run
