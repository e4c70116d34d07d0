"""Damaged GGUF files and the child process that opens them: `python -m tests.ml.gguf.gguf_mutants FOLDER SEED COUNT`.

The child writes the number of the mutant to FOLDER/progress before it opens FOLDER/mutant.gguf, so that after a crash
both name the culprit. It prints a JSON summary.
"""

from __future__ import annotations

import collections
import faulthandler
import json
import os
import random
import re
import struct
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from ollama_engine.errors import ModelFormatError
from ollama_engine.ml.gguf.gguf_file import GGUFFile
from tests.ml.gguf.gguf_bytes import ARCHITECTURE, ARRAY, SIZES, STRING, U16, U32, File, array, kv, tensor

_EXTREMES = (
    0, 1, 2, 3, 4, 5, 7, 8, 9, 12, 13, 31, 32, 33, 63, 64, 65, 127, 128, 255, 256, 2**15, 2**16 - 1, 2**16, 2**24,
    2**30, 2**30 + 1, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**40, 2**60, 2**61, 2**62, 2**63 - 1, 2**63, 2**64 - 8,
    2**64 - 1,
)  # fmt: skip

# Offset and width of every count, length, type, extent and offset of a header.
Fields = list[tuple[int, int]]


def originals() -> list[bytes]:
    """Sound files that between them hold every value type, quantized and plain tensors, and both versions."""
    scalars = [kv(f"scalar.{kind}", kind, 1) for kind in SIZES]
    arrays = [array(f"array.{kind}", kind, [0, 1, 1]) for kind in SIZES]
    texts = [kv("text", STRING, "some text"), array("tokens", STRING, ["a", "", "bc", b"x\0y", b"\xff", "token"])]
    weights = [
        tensor("token_embd.weight", [32, 4], 8, 0),
        tensor("blk.0.attn_q.weight", [8, 2, 2], 0, 160),
        tensor("blk.0.bias", [3], 1, 288),
        tensor("scale", [], 0, 320),
    ]
    aligned = [tensor("a", [16], 0, 0), tensor("b", [256], 12, 64), tensor("c", [1, 1, 1, 2], 26, 256)]
    return [
        File([ARCHITECTURE, *scalars, *arrays, *texts], weights, b"\1" * 352).bytes(),
        File([ARCHITECTURE, kv("general.alignment", U32, 64)], aligned, b"\2" * 320, version=2, alignment=64).bytes(),
        File([ARCHITECTURE, *texts, array("merges", STRING, [f"{i} {i}" for i in range(40)])]).bytes(),
        File([kv("split.count", U16, 1), kv("split.no", U16, 0), *texts], weights[:1], b"\3" * 160).bytes(),
    ]


def header_fields(data: bytes) -> Fields:
    """Where the structure of a sound file lies."""
    fields: Fields = [(0, 4), (4, 4), (8, 8), (16, 8)]
    n_tensors, n_kv = struct.unpack_from("<QQ", data, 8)
    at = 24
    for _ in range(n_kv):
        at = _string_field(data, at, fields)
        at = _value_fields(data, at, fields)
    for _ in range(n_tensors):
        at = _string_field(data, at, fields)
        n_dims = struct.unpack_from("<I", data, at)[0]
        widths = (4, *(8,) * n_dims, 4, 8)
        for width in widths:
            fields.append((at, width))
            at += width
    return fields


def _string_field(data: bytes, at: int, fields: Fields) -> int:
    fields.append((at, 8))
    return int(at + 8 + struct.unpack_from("<Q", data, at)[0])


def _value_fields(data: bytes, at: int, fields: Fields) -> int:
    fields.append((at, 4))
    kind, count = struct.unpack_from("<I", data, at)[0], 1
    at += 4
    if kind == ARRAY:
        fields += [(at, 4), (at + 4, 8)]
        kind, count = struct.unpack_from("<IQ", data, at)
        at += 12
    for _ in range(count):
        if kind == STRING:
            at = _string_field(data, at, fields)
        else:
            fields.append((at, SIZES[kind]))
            at += SIZES[kind]
    return at


# -- mutations ---------------------------------------------------------------------------------------------------------


def _flip_bits(rng: random.Random, data: bytearray, fields: Fields) -> None:
    end = fields[-1][0] + fields[-1][1]
    for _ in range(rng.choice((1, 1, 1, 2, 8))):
        data[rng.randrange(end)] ^= 1 << rng.randrange(8)


def _truncate(rng: random.Random, data: bytearray, fields: Fields) -> None:
    at, width = rng.choice(fields)
    del data[rng.choice((rng.randrange(len(data)), at, at + width // 2, at + width)) :]


def _set_field(rng: random.Random, data: bytearray, fields: Fields) -> None:
    for _ in range(rng.choice((1, 1, 1, 2))):
        at, width = rng.choice(fields)
        old = int.from_bytes(data[at : at + width], "little")
        value = rng.choice((rng.choice(_EXTREMES), old + 1, old - 1, old * 2, len(data), len(data) - at, -old))
        data[at : at + width] = (value % (1 << 8 * width)).to_bytes(width, "little")


def _splice(rng: random.Random, data: bytearray, fields: Fields) -> None:
    start, end = sorted((rng.choice(fields)[0], rng.choice(fields)[0]))
    piece = data[start:end]
    at = rng.choice(fields)[0]
    data[at : at + rng.choice((0, len(piece)))] = piece


def _delete(rng: random.Random, data: bytearray, fields: Fields) -> None:
    at = rng.choice(fields)[0]
    del data[at : at + rng.choice((1, 4, 8, rng.randrange(1, 64)))]


def _noise(rng: random.Random, data: bytearray, fields: Fields) -> None:
    at = rng.choice(fields)[0]
    data[at : at + 8] = rng.randbytes(8)


_MUTATIONS: tuple[Callable[[random.Random, bytearray, Fields], None], ...] = (
    _flip_bits, _flip_bits, _truncate, _set_field, _set_field, _set_field, _splice, _delete, _noise,
)  # fmt: skip


def mutant(rng: random.Random, sound: list[tuple[bytes, Fields]]) -> bytes:
    source, fields = rng.choice(sound)
    data = bytearray(source)
    rng.choice(_MUTATIONS)(rng, data, fields)
    return bytes(data)


# -- the child ---------------------------------------------------------------------------------------------------------


def read_everything(path: Path, size: int) -> None:
    """Open `path` and use all of it; raises AssertionError if what it says cannot be true."""
    with GGUFFile(path) as file:
        assert len(dict(file.metadata)) == len(file.metadata)
        for info in file.tensors.values():
            assert info.offset % file.alignment == 0
            assert 0 < info.nbytes <= size - info.offset
            assert min(info.shape) > 0


def run(folder: Path, seed: int, count: int) -> dict[str, object]:
    rng = random.Random(seed)
    sound = [(data, header_fields(data)) for data in originals()]
    path = folder / "mutant.gguf"
    refusals: collections.Counter[str] = collections.Counter()
    failures = []
    opened = 0
    with path.open("wb", buffering=0) as target, (folder / "progress").open("wb", buffering=0) as progress:
        for number in range(count):
            data = mutant(rng, sound)
            # In place: a file truncated to nothing and written again is flushed to disk by some file systems.
            os.pwrite(progress.fileno(), b"%d" % number, 0)
            os.pwrite(target.fileno(), data, 0)
            target.truncate(len(data))
            try:
                read_everything(path, len(data))
                opened += 1
            except ModelFormatError as error:
                refusals[re.sub(r"'.*'|[0-9]+", "_", str(error).removeprefix(str(path)))] += 1
            except Exception:
                failures.append({"number": number, "data": data.hex(), "trace": traceback.format_exc()})
    return {"opened": opened, "refused": sum(refusals.values()), "kinds": sorted(refusals), "failures": failures[:5]}


def limit_memory(spare: int) -> None:
    """An allocation by a made-up size fails here instead of being granted untouched."""
    if sys.platform != "linux":
        return
    import resource  # noqa: PLC0415, does not exist everywhere

    used = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + spare, used + spare))


if __name__ == "__main__":
    faulthandler.enable()
    limit_memory(256 << 20)
    json.dump(run(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])), sys.stdout)
