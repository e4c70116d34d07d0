"""Models split over several files: any part opens all of them, and parts that do not fit together are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from ollama_engine.errors import ModelFormatError
from ollama_engine.ml.gguf.gguf_file import GGUFFile
from tests.ml.gguf.gguf_bytes import ARCHITECTURE, BOOL, I32, STRING, U16, U32, File, kv, tensor


def part_name(number: int, count: int = 3, prefix: str = "tiny") -> str:
    return f"{prefix}-{number:05d}-of-{count:05d}.gguf"


def part(number: int, names: list[str], *, count: int = 3, total: int | None = 4, integer: int = U16) -> bytes:
    """Part `number` (from 1) with one 32-element f32 tensor per name, filled with the part's number."""
    kvs = [kv("split.no", integer, number - 1), kv("split.count", integer, count)]
    if number == 1:
        kvs.append(ARCHITECTURE)
    if total is not None:
        kvs.append(kv("split.tensors.count", I32, total))
    tensors = [tensor(name, [32], 0, 128 * i) for i, name in enumerate(names)]
    return File(kvs, tensors, bytes([number]) * 128 * len(names)).bytes()


def write_parts(folder: Path, parts: dict[int, bytes]) -> list[Path]:
    paths = []
    for number, data in parts.items():
        paths.append(folder / part_name(number))
        paths[-1].write_bytes(data)
    return paths


@pytest.mark.parametrize("given", [1, 2, 3])
@pytest.mark.parametrize("integer", [U16, I32])
def test_any_part_opens_all(tmp_path: Path, given: int, integer: int) -> None:
    parts = {i: part(i, names, integer=integer) for i, names in {1: [], 2: ["a", "b"], 3: ["c", "d"]}.items()}
    paths = write_parts(tmp_path, parts)
    with GGUFFile(paths[given - 1]) as file:
        assert file.files == tuple(map(str, paths))
        assert file.architecture == "llama"
        assert [(t.name, t.file) for t in file.tensors.values()] == [("a", 1), ("b", 1), ("c", 2), ("d", 2)]
        for info in file.tensors.values():
            content = paths[info.file].read_bytes()
            assert content[info.offset : info.offset + info.nbytes] == bytes([info.file + 1]) * 128


def test_a_relative_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_parts(tmp_path, {1: part(1, ["a", "b"]), 2: part(2, ["c"]), 3: part(3, ["d"])})
    monkeypatch.chdir(tmp_path)
    with GGUFFile(part_name(2)) as file:
        assert file.files == tuple(part_name(i) for i in (1, 2, 3))


def test_a_split_of_one_needs_no_special_name(tmp_path: Path) -> None:
    path = tmp_path / "whole.gguf"
    path.write_bytes(part(1, ["a"], count=1))
    with GGUFFile(path) as file:
        assert list(file.tensors) == ["a"]


SOUND = {1: part(1, ["a", "b"]), 2: part(2, ["c"]), 3: part(3, ["d"])}
BROKEN = [
    ("missing", {1: SOUND[1], 3: SOUND[3]}, "split into 3 files, and of these are missing: tiny-00002-of-00003.gguf;"),
    (
        "swapped",
        {**SOUND, 2: SOUND[3]},
        "part 2 of 3, but it holds split.no = 2 and split.count = 3, expected 1",
    ),
    ("count", {**SOUND, 3: part(3, ["d"], count=4)}, "split.no = 2 and split.count = 4, expected 2 and 3"),
    ("no_split", {**SOUND, 2: File([ARCHITECTURE]).bytes()}, "split.no = None and split.count = None"),
    ("duplicate", {**SOUND, 3: part(3, ["a"])}, "tensor 'a' is also in tiny-00001-of-00003.gguf"),
    ("total", {**SOUND, 3: part(3, ["d", "e"])}, "hold 5 tensors together, but split.tensors.count is 4"),
    ("corrupt", {**SOUND, 2: SOUND[2][:-1]}, "tiny-00002-of-00003.gguf: the file is truncated"),
    ("type", {**SOUND, 1: File([kv("split.count", STRING, "3")]).bytes()}, "'split.count' is '3', expected a count"),
    ("bool", {**SOUND, 1: File([kv("split.count", BOOL, 1)]).bytes()}, "'split.count' is True, expected a count"),
    ("negative", {**SOUND, 1: File([kv("split.count", I32, -3)]).bytes()}, "'split.count' is -3, expected a count"),
]


@pytest.mark.parametrize(("parts", "message"), [case[1:] for case in BROKEN], ids=[case[0] for case in BROKEN])
def test_parts_that_do_not_fit(tmp_path: Path, parts: dict[int, bytes], message: str) -> None:
    first = write_parts(tmp_path, parts)[0]
    with pytest.raises(ModelFormatError, match=message.replace(".", r"\.")):
        GGUFFile(first)


@pytest.mark.parametrize("name", ["renamed.gguf", "tiny-00001-of-00004.gguf", "tiny-1-of-3.gguf"])
def test_a_part_with_another_name(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(SOUND[1])
    with pytest.raises(ModelFormatError, match=r"must end in -<number>-of-00003\.gguf"):
        GGUFFile(path)


def test_an_absurd_number_of_parts(tmp_path: Path) -> None:
    path = tmp_path / "tiny-00001-of-99999.gguf"
    path.write_bytes(File([kv("split.no", U16, 0), kv("split.count", U32, 99999)]).bytes())
    with pytest.raises(ModelFormatError, match=r"tiny-00006-of-99999\.gguf and 99993 more;"):
        GGUFFile(path)
