"""GGUF reading: every metadata type and tensor, and a precise refusal of everything that is not sound."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import gguf as gguf_py
import numpy as np
import pytest

from ollama_engine.errors import ClosedError, ModelFormatError, UnsupportedModelError
from ollama_engine.ml.gguf import gguf_file
from ollama_engine.ml.gguf.gguf_file import GGUFFile, TensorInfo
from tests.ml.gguf.gguf_bytes import (
    ARCHITECTURE,
    ARRAY,
    BOOL,
    F32,
    F64,
    I8,
    I16,
    I32,
    I64,
    STRING,
    U8,
    U16,
    U32,
    U64,
    File,
    array,
    kv,
    string,
    tensor,
)
from tests.support.gguf_files import write_and_close


def write(tmp_path: Path, data: bytes, name: str = "model.gguf") -> Path:
    path = tmp_path / name
    path.write_bytes(data)
    return path


# -- what is read ------------------------------------------------------------------------------------------------------

SCALARS = [
    (U8, 255), (I8, -128), (U16, 65535), (I16, -32768), (U32, 2**32 - 1), (I32, -(2**31)), (U64, 2**64 - 1),
    (I64, -(2**63)), (F32, 0.5), (F64, 1e300), (BOOL, True), (BOOL, False), (STRING, "grüße \U0001f999"), (STRING, ""),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "value"), SCALARS)
def test_scalar_values(tmp_path: Path, kind: int, value: object) -> None:
    with GGUFFile(write(tmp_path, File([kv("k", kind, value)]).bytes())) as file:
        assert file.metadata["k"] == value
        assert type(file.metadata["k"]) is type(value)


ARRAYS = [
    (U8, [0, 255], np.uint8), (I8, [-128, 127], np.int8), (U16, [1], np.uint16), (I16, [-5], np.int16),
    (U32, [1, 2, 3], np.uint32), (I32, [-1], np.int32), (U64, [2**64 - 1], np.uint64), (I64, [-(2**63)], np.int64),
    (F32, [0.5, -2.0], np.float32), (F64, [1e300], np.float64), (BOOL, [1, 0, 1], np.bool_), (F32, [], np.float32),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "values", "dtype"), ARRAYS)
def test_number_arrays(tmp_path: Path, kind: int, values: list[object], dtype: type) -> None:
    with GGUFFile(write(tmp_path, File([array("k", kind, values)]).bytes())) as file:
        found = file.metadata["k"]
        assert isinstance(found, np.ndarray)
        assert found.dtype == dtype
        assert found.tolist() == values
        assert not found.flags.writeable


def test_small_values_are_remembered_and_large_arrays_are_not_kept(tmp_path: Path) -> None:
    values = [array("few", U8, [1] * 4096), array("many", U8, [1] * 4097), array("words", STRING, ["a"] * 4097)]
    with GGUFFile(write(tmp_path, File(values).bytes())) as file:
        assert file.metadata["few"] is file.metadata["few"]
        for name in ("many", "words"):
            first, again = file.metadata[name], file.metadata[name]
            assert first is not again
            assert list(first) == list(again)  # type: ignore[arg-type]


def test_strings_keep_zero_bytes_and_bytes_that_are_not_utf8(tmp_path: Path) -> None:
    tokens = [b"", b"a\0b", b"\0", "é".encode(), b"\xff\xfe"]
    data = File([array("tokens", STRING, list(tokens)), kv("one", STRING, b"x\0y\xff"), kv("last", U8, 7)]).bytes()
    with GGUFFile(write(tmp_path, data)) as file:
        assert [text.encode("utf-8", "surrogateescape") for text in file.metadata["tokens"]] == tokens
        assert file.metadata["one"] == "x\0y\udcff"
        assert file.metadata["last"] == 7


def test_bool_bytes_other_than_one_are_true(tmp_path: Path) -> None:
    with GGUFFile(write(tmp_path, File([array("k", BOOL, [0, 2, 255])]).bytes())) as file:
        assert file.metadata["k"].tolist() == [False, True, True]


@pytest.mark.parametrize("room", [16, 100, 1 << 20])
def test_a_header_is_read_piece_by_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int) -> None:
    tokens: list[object] = [f"token {i}" for i in range(500)]
    path = write(tmp_path, File([array("tokens", STRING, tokens), kv("last", U8, 7)]).bytes())
    monkeypatch.setattr(gguf_file, "_FIRST_READ", 20)
    monkeypatch.setattr(gguf_file, "_ROOM", room)
    with GGUFFile(path) as file:
        assert (file.metadata["tokens"], file.metadata["last"]) == (tokens, 7)


def test_a_file_that_became_shorter_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, File([array("tokens", STRING, ["token"] * 500)]).bytes())
    monkeypatch.setattr(gguf_file, "_FIRST_READ", 40)
    monkeypatch.setattr(gguf_file, "Header", shrink_then(gguf_file.Header, path))
    with pytest.raises(ModelFormatError, match="the file became shorter while it was read"):
        GGUFFile(path)


def shrink_then(header: type, path: Path) -> Callable[[memoryview, int], object]:
    """A writer starts over while the header is looked at."""

    def look(data: memoryview, size: int) -> object:
        os.truncate(path, 60)
        return header(data, size)

    return look


def test_a_file_written_by_the_gguf_package(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    writer = gguf_py.GGUFWriter(path, "llama")
    writer.add_uint32("llama.block_count", 2)
    writer.add_array("tokenizer.ggml.tokens", ["a", "b", "ü"])
    weights = {
        "a.weight": np.arange(12, dtype=np.float32).reshape(3, 4),
        "b.weight": np.arange(5, dtype=np.float16),
        "c.weight": np.arange(64, dtype=np.uint8).reshape(1, 64)[:, :34],
    }
    writer.add_tensor("a.weight", weights["a.weight"])
    writer.add_tensor("b.weight", weights["b.weight"])
    writer.add_tensor("c.weight", weights["c.weight"], raw_dtype=gguf_py.GGMLQuantizationType.Q8_0)
    write_and_close(writer)

    with GGUFFile(path) as file:
        assert (file.version, file.architecture, file.alignment, file.files) == (3, "llama", 32, (str(path),))
        assert list(file.metadata)[:2] == ["general.architecture", "llama.block_count"]
        assert file.metadata["tokenizer.ggml.tokens"] == ["a", "b", "ü"]
        assert "absent" not in file.metadata
        found = {name: (t.dtype, t.shape, t.nbytes, t.file) for name, t in file.tensors.items()}
        assert found == {
            "a.weight": ("f32", (4, 3), 48, 0),
            "b.weight": ("f16", (5,), 10, 0),
            "c.weight": ("q8_0", (32, 1), 34, 0),
        }
        content = path.read_bytes()
        for name, info in file.tensors.items():
            assert content[info.offset : info.offset + info.nbytes] == weights[name].tobytes()


def test_version_2_alignment_and_scalar_tensor(tmp_path: Path) -> None:
    kvs = [ARCHITECTURE, kv("general.alignment", U32, 64)]
    tensors = [tensor("x", [], offset=0), tensor("y", [3, 1, 2, 1], offset=64)]
    path = write(tmp_path, File(kvs, tensors, b"\0" * 88, version=2, alignment=64).bytes())
    with GGUFFile(path) as file:
        assert (file.version, file.alignment) == (2, 64)
        start = file.tensors["x"].offset
        assert start % 64 == 0
        assert list(file.tensors.values()) == [
            TensorInfo("x", "f32", (1,), start, 4, 0),
            TensorInfo("y", "f32", (3, 1, 2, 1), start + 64, 24, 0),
        ]


def test_a_header_larger_than_the_first_read(tmp_path: Path) -> None:
    tokens = [f"token {i} {'x' * 40}" for i in range(60_000)]
    data = File([ARCHITECTURE, array("tokens", STRING, list(tokens)), kv("end", U8, 1)], [tensor("w", [4])], b"\0" * 16)
    with GGUFFile(write(tmp_path, data.bytes())) as file:
        assert file.metadata["tokens"] == tokens
        assert file.metadata["end"] == 1
        assert file.tensors["w"].nbytes == 16


def test_path_like_and_bytes_paths(tmp_path: Path) -> None:
    path = write(tmp_path, File([ARCHITECTURE]).bytes())
    for given in (path, str(path), os.fsencode(path)):
        with GGUFFile(given) as file:
            assert file.path == str(path)


def test_architecture_missing(tmp_path: Path) -> None:
    file = GGUFFile(write(tmp_path, File([kv("k", U8, 1)]).bytes()))
    with file, pytest.raises(ModelFormatError, match=r"model\.gguf.*general\.architecture"):
        _ = file.architecture


def test_after_close(tmp_path: Path) -> None:
    file = GGUFFile(write(tmp_path, File([ARCHITECTURE, array("k", STRING, ["a"])]).bytes()))
    metadata, tokens = file.metadata, file.metadata["k"]
    file.close()
    file.close()
    assert tokens == ["a"]
    for use in (
        lambda: file.metadata,
        lambda: file.tensors,
        lambda: file.version,
        lambda: file.architecture,
        lambda: metadata["k"],
        file.__enter__,
    ):
        with pytest.raises(ClosedError, match="closed"):
            use()


# -- what is refused ---------------------------------------------------------------------------------------------------

ROW = tensor("w", [32])
DATA = b"\0" * 128
HUGE = 2**63
NESTED = string("k") + b"\x09\0\0\0" + b"\x09\0\0\0" + b"\x01" + b"\0" * 7 + b"\x04\0\0\0" + b"\0" * 32

BAD, OLD = ModelFormatError, UnsupportedModelError

FOREIGN = [
    ("empty", b"", "it is empty"),
    ("short", b"GG", "starts with b'GG'"),
    ("noise", b"\x7fELF\x02\x01\x01", "expected b'GGUF'"),
    ("ggml", b"lmgg" + b"\0" * 60, "old GGML"),
    ("ggjt", b"tjgg" + b"\0" * 60, "old GGJT"),
    ("safetensors", b"\x40\0\0\0\0\0\0\0" + b'{"a":{}}', "safetensors"),
    ("zip", b"PK\x03\x04" + b"\0" * 60, "zip archive or a PyTorch"),
    ("pickle", b"\x80\x02\x8a\x0a", "pickle"),
    ("html", b"\n<!DOCTYPE html><html>", "web page"),
    ("lfs", b"version https://git-lfs.github.com/spec/v1\noid sha256:0", "git lfs pull"),
    ("json", b'{"error": "not found"}', "JSON"),
    ("gzip", b"\x1f\x8b\x08\0", "gzip"),
    ("zeros", b"\0" * 100, "did not finish"),
]

BROKEN = [
    ("version", File(version=1), OLD, r"version 1 cannot be read.*\(byte 4\)"),
    ("version_0", File(version=0), OLD, "version 0 cannot be read"),
    ("version_4", File(version=4), OLD, "version 4 cannot be read"),
    ("big_endian", File(version=0x03000000), OLD, "byte order"),
    ("n_tensors", File(n_tensors=2**40), BAD, rf"number of tensors is given as {2**40}.*\(byte 8\)"),
    ("n_kv", File(n_kv=HUGE), BAD, rf"number of metadata keys is given as {HUGE}.*\(byte 16\)"),
    ("no_kv", File([ARCHITECTURE], n_kv=2), BAD, r"reading a metadata key \(metadata key number 1\)"),
    ("kv_cut", File([ARCHITECTURE[:-2]]), BAD, "string of 5 bytes, but only 3 bytes are left"),
    ("type_cut", File([ARCHITECTURE, string("k") + b"\0"]), BAD, r"a metadata type \(metadata key 'k'\)"),
    ("value_cut", File([ARCHITECTURE, kv("k", U64, 1)[:-1]]), BAD, "needs 8 more bytes, only 7 are left"),
    ("key_length", File([b"\xff" * 8 + b"k" * 30]), BAD, rf"string of {2**64 - 1} bytes"),
    ("empty_key", File([kv("", U64, 1)]), BAD, "name of metadata key number 0 is empty"),
    ("zero_key", File([kv("a\0b", U64, 1)]), BAD, r"metadata key 'a\\x00b' holds a zero byte"),
    ("same_key", File([kv("a", U8, 1), kv("b", U8, 1), kv("a", U8, 1)]), BAD, "key 'a' appears twice"),
    ("same_key_2", File([kv("a", U8, 1)] * 2, [ROW], DATA), BAD, "metadata key 'a' appears twice"),
    ("value_type", File([string("k") + b"\x0d\0\0\0" + b"\0" * 8]), BAD, "'k' has the unknown value type 13"),
    ("nested", File([NESTED]), OLD, "'k' is an array of arrays"),
    ("array_type", File([array("k", U8, [1] * 9).replace(b"\x09\0\0\0\0", b"\x09\0\0\0\x63", 1)]), BAD, "99"),
    ("array_n", File([array("k", U32, [1], 2**61)]), BAD, rf"array of {2**61} elements.*at most 1 more"),
    ("array_cut", File([array("k", U32, [1, 2], 3)]), BAD, "array of 3 elements.*at most 2 more"),
    ("strings_n", File([array("k", STRING, ["a", "b"], 4)]), BAD, "array of 4 elements.*at most 2 more"),
    ("strings_cut", File([array("k", STRING, ["abcdefgh"], 2)]), BAD, "needs 8 more bytes, only 0 are left"),
    ("align_type", File([kv("general.alignment", U64, 32)]), BAD, "is of type u64, expected u32"),
    ("align_array", File([array("general.alignment", U32, [32])]), BAD, "is of type array, expected u32"),
    ("align_0", File([kv("general.alignment", U32, 0)]), BAD, "'general.alignment' is 0, expected a power"),
    ("align_48", File([kv("general.alignment", U32, 48)]), BAD, "is 48, expected a power of two"),
    ("align_2g", File([kv("general.alignment", U32, 2**31)]), BAD, "expected a power of two up to 1048576"),
    ("name_cut", File([], [ROW[:4]]), BAD, r"reading a tensor name \(tensor number 0\) needs"),
    ("name_empty", File([], [tensor("", [32])], DATA), BAD, "name of tensor number 0 is empty"),
    ("name_64", File([], [tensor("n" * 64, [32])], DATA), BAD, "64 bytes long, at most 63"),
    ("zero_name", File([], [tensor("a\0b", [32])], DATA), BAD, "holds a zero byte"),
    ("same_name", File([], [ROW, tensor("w", [32], offset=128)], DATA * 2), BAD, "'w' appears twice"),
    ("n_dims", File([], [tensor("w", [1] * 5)], DATA), BAD, "5 dimensions, at most 4"),
    ("shape_cut", File([], [tensor("w" * 60, [32])[:-16]]), BAD, "needs 8 more bytes, only 4 are left"),
    ("ne_0", File([], [tensor("w", [4, 0])], DATA), BAD, "0 elements in dimension 1, expected at least 1"),
    ("ne_negative", File([], [tensor("w", [-4])], DATA), BAD, "-4 elements in dimension 0"),
    ("elements", File([], [tensor("w", [2**31, 2**31, 4])], DATA), BAD, "more elements than can be counted"),
    ("bytes", File([], [tensor("w", [2**60])], DATA), BAD, "more elements than can be counted"),
    ("type_gone", File([], [tensor("w", [32], 4)], DATA), OLD, "type number 4, which"),
    ("type_new", File([], [tensor("w", [32], 999)], DATA), OLD, "type number 999, which"),
    ("type_neg", File([], [tensor("w", [32], 2**32 - 1)], DATA), OLD, "type number 4294967295"),
    ("block", File([], [tensor("w", [31], 8)], DATA), BAD, "rows of 31 elements, but its type.*blocks of 32"),
    ("offset", File([], [tensor("w", [32], 0, 32)], DATA * 2), BAD, "placed at 32, expected 0"),
    ("unaligned", File([], [tensor("w", [31]), tensor("v", [1], 0, 124)], DATA * 2), BAD, "expected 128"),
    ("overlap", File([], [ROW, tensor("v", [32], 0, 0)], DATA * 2), BAD, "'v' is placed at 0, expected 128"),
    ("no_data", File([], [ROW]), BAD, r"tensor 'w' needs bytes up to 192, but the file has 57.*again"),
    ("half_data", File([], [ROW], DATA[:-1]), BAD, r"needs bytes up to 192, but the file has 191"),
    ("sum", File([], [tensor("a", [2**59 // 4]), tensor("b", [2**59], 0, 2**59)], DATA), BAD, "needs bytes up"),
]  # fmt: skip


@pytest.mark.parametrize(("data", "message"), [case[1:] for case in FOREIGN], ids=[case[0] for case in FOREIGN])
def test_files_of_other_formats(tmp_path: Path, data: bytes, message: str) -> None:
    path = write(tmp_path, data)
    with pytest.raises(ModelFormatError, match=message) as caught:
        GGUFFile(path)
    assert str(caught.value).startswith(f"{path}: not a GGUF file; ")


@pytest.mark.parametrize(("file", "kind", "message"), [case[1:] for case in BROKEN], ids=[case[0] for case in BROKEN])
def test_broken_headers(tmp_path: Path, file: File, kind: type[Exception], message: str) -> None:
    path = write(tmp_path, file.bytes())
    with pytest.raises(kind, match=message) as caught:
        GGUFFile(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert type(caught.value) is kind


def test_every_truncation_is_refused(tmp_path: Path) -> None:
    whole = File([ARCHITECTURE, array("k", STRING, ["a", "b"]), kv("n", U32, 1)], [ROW], DATA).bytes()
    for length in range(len(whole)):
        with pytest.raises(ModelFormatError):
            GGUFFile(write(tmp_path, whole[:length]))
    GGUFFile(write(tmp_path, whole)).close()


def test_a_header_beyond_the_limit_is_not_read(tmp_path: Path) -> None:
    """A sparse file of 2 GB whose first key claims most of it: refused without reading or allocating it."""
    path = write(tmp_path, File([array("k", U8, [1])[:-9] + (2**30).to_bytes(8, "little")]).bytes())
    os.truncate(path, 2**31)
    with pytest.raises(ModelFormatError, match="header would be longer than 1073741824 bytes"):
        GGUFFile(path)


def test_paths_that_are_no_files(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        GGUFFile(tmp_path / "absent.gguf")
    with pytest.raises(IsADirectoryError, match=r"pass the \.gguf file inside"):
        GGUFFile(tmp_path)
    (tmp_path / "config.json").touch()
    with pytest.raises(IsADirectoryError, match=r"ollama-engine convert makes a \.gguf file of it"):
        GGUFFile(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ModelFormatError, match="not a regular file"):
        GGUFFile(tmp_path / "pipe")
    with pytest.raises(TypeError):
        GGUFFile(3)  # type: ignore[arg-type]


def test_constants_agree_with_the_gguf_package() -> None:
    kinds = gguf_py.GGUFValueType
    assert (U8, STRING, ARRAY, F64) == (kinds.UINT8, kinds.STRING, kinds.ARRAY, kinds.FLOAT64)
