"""Vision parts in files of their own ("mmproj"): the first byte says beside which text model, the rest is a header."""

from __future__ import annotations

import struct
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ollama_engine.errors import EngineError
from tests.fuzz.targets.model import SMALL, answers, header_of
from tests.models.vision import harness
from tests.support.mmproj import GEMMA3, LLAMA4, cut

WORDS = (
    b"clip", b"clip.projector_type", b"clip.vision.projector_type", b"gemma3", b"llama4", b"mlp", b"pixtral",
    b"clip.vision.image_size", b"clip.vision.patch_size", b"clip.vision.block_count", b"clip.vision.image_mean",
    b"clip.vision.embedding_length", b"clip.vision.feed_forward_length", b"clip.vision.attention.head_count",
    b"clip.vision.projector.scale_factor", b"v.patch_embd.weight", b"mm.input_projection.weight", b"v.blk.0.ln1.weight",
    b"\0\0\0\0\1\0\0\0", b"\xff\xff\xff\xff", b"\0\0\xc0\x7f", b"\0\0\0\0",
)  # fmt: skip
CUTS = {"gemma3": GEMMA3, "llama4": LLAMA4}


def _pairs(folder: Path) -> list[tuple[Path, Path]]:
    """(text model, projector) of each family."""
    cases = {name: next(case for case in harness.cases() if case.name.startswith(name)) for name in CUTS}
    found = []
    for name, how in CUTS.items():
        (folder / name).mkdir()
        found.append(cut(harness.converted(cases[name], folder / name), folder / name, how))
    return found


def seeds() -> Iterable[bytes]:
    with tempfile.TemporaryDirectory() as folder:
        for i, (_, part) in enumerate(_pairs(Path(folder))):
            yield struct.pack("B", i) + header_of(part)


@contextmanager
def opened(folder: Path) -> Iterator[Callable[[bytes], bool]]:
    pairs = _pairs(folder)
    weights = [part.read_bytes()[len(header_of(part)) :] for _, part in pairs]
    path = folder / "projector.gguf"

    def run(data: bytes) -> bool:
        if not data:
            return False
        which = data[0] % len(pairs)
        path.write_bytes(data[1:] + weights[which])
        try:
            return answers(pairs[which][0], projector=path, **{**SMALL, "num_ctx": 128, "batch_size": 64})
        except EngineError:
            return False

    yield run
