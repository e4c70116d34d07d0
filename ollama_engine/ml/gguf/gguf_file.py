"""GGUF files: owns opening a model, in one file or split over several, and the view of its metadata and tensors.

The header bytes are checked and decoded in _gguf.pyx; nothing here reads tensor data.
Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import errno
import mmap
import os
import re
import stat
from collections.abc import Iterator, Mapping
from io import FileIO
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from ollama_engine.closing import Closing
from ollama_engine.errors import ClosedError, ModelFormatError, NoMemoryError
from ollama_engine.home_path import at_home
from ollama_engine.ml.gguf._gguf import MAX_HEADER, Header
from ollama_engine.ml.gguf.gguf_faults import HeaderFaultError, fault_error
from ollama_engine.ml.gguf.metadata import Metadata, MetadataValue

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["IMAGE_PARTS", "SOUND_PARTS", "GGUFFile", "TensorInfo"]

IMAGE_PARTS: Final = ("v.", "mm.")
"""Prefixes of the tensors of a vision tower and of its projector."""
SOUND_PARTS: Final = ("a.", "mm.a.")
"""The same of a part that reads sound."""

# A vocabulary of 128k tokens with merges makes a header of about 8 MB. Memory costs more than parsing: 1 MB takes
# 0.4 ms to allocate and 0.2 ms to walk. So the buffer grows by half at a time instead of being far too large.
_FIRST_READ = 1 << 17
_ROOM = 64 << 20
_KEPT = 4096
"""Longer arrays are decoded on every access and not kept: 128k tokens have 19 MiB of merges as strings."""
_PART_NAME = re.compile(r"(?P<prefix>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)


class TensorInfo(NamedTuple):
    """Where one tensor lies.

    `shape` is in ggml order, the dimension that varies fastest first, and has at least one entry. `offset` counts
    bytes from the start of `GGUFFile.files[file]`.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int
    file: int


class GGUFFile(Closing):
    """A GGUF model opened for reading; a context manager.

    A path to any part of a split model opens all of its parts; the metadata are those of the first one.

    Args:
        path: the file, or any part named `<prefix>-00001-of-00003.gguf`; `~` is the user's home folder.

    Raises:
        FileNotFoundError, IsADirectoryError, PermissionError: the path cannot be opened.
        ModelFormatError: the file is not GGUF, truncated or corrupted, or a part is missing. The message says where
            and what to do.
        UnsupportedModelError: a GGUF version, byte order, tensor type or nesting that ggml does not read.
        NoMemoryError: the header does not fit into memory.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = at_home(path)
        self._parts: list[Header] = []
        try:
            self._open()
        except BaseException:
            self.close()
            raise

    def _open(self) -> None:
        given = _read_header(self.path)
        self._parts = [given]
        count = _split_count(self.path, given)
        self.files: tuple[str, ...] = (self.path,)
        if count > 1:
            self.files = _part_paths(self.path, count)
            self._parts = _open_parts(self.files, self.path, given)
        self._metadata: Mapping[str, MetadataValue] = _LazyMetadata(self._parts[0])
        self._tensors = _merge_tensors(self.files, self._parts)
        _check_tensor_count(self.files, self._metadata, len(self._tensors))

    def _first(self) -> Header:
        if not self._parts or self._parts[0].closed:
            raise ClosedError(f"{self.path} was closed, by itself or with the Engine that had it open; open it again")
        return self._parts[0]

    @property
    def version(self) -> int:
        """The GGUF version of the (first) file: 2 or 3."""
        return self._first().version

    @property
    def alignment(self) -> int:
        """Tensor data start at multiples of this many bytes."""
        return self._first().alignment

    @property
    def metadata(self) -> Mapping[str, MetadataValue]:
        """The metadata in file order. Values are decoded on access; large arrays are decoded again on every access.

        Strings come as str, with bytes that are not UTF-8 as surrogate escapes; arrays of strings as list[str]; arrays
        of numbers or truth values as read-only numpy arrays.
        """
        self._first()
        return self._metadata

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """All tensors by name, in file order."""
        self._first()
        return MappingProxyType(self._tensors)

    @property
    def architecture(self) -> str:
        """`general.architecture`.

        Raises:
            ModelFormatError: the key is absent or not a string.
        """
        try:
            return Metadata(self.metadata).architecture
        except ModelFormatError as error:
            raise ModelFormatError(f"{self.path}: {error}") from None

    def close(self) -> None:
        """Free the header. Values already read stay valid; a second call does nothing."""
        for part in self._parts:
            part.close()

    def __enter__(self) -> Self:
        self._first()
        return self

    def __repr__(self) -> str:
        return f"GGUFFile({self.path!r})"


class _LazyMetadata(Mapping[str, MetadataValue]):
    """Decodes values on first use and keeps them, except large arrays: a tokenizer reads those once."""

    def __init__(self, header: Header) -> None:
        self._header = header
        self._index = {key: i for i, key in enumerate(header.keys)}
        self._decoded: dict[str, MetadataValue] = {}

    def __getitem__(self, key: str) -> MetadataValue:
        if self._header.closed:
            raise ClosedError(f"metadata key {key!r} was read after the GGUF file was closed")
        if key in self._decoded:
            return self._decoded[key]
        value = self._header.value(self._index[key])
        if isinstance(value, str | int | float) or len(value) <= _KEPT:
            self._decoded[key] = value
        return value

    def __contains__(self, key: object) -> bool:
        return key in self._index

    def __iter__(self) -> Iterator[str]:
        return iter(self._index)

    def __len__(self) -> int:
        return len(self._index)

    def __reduce__(self) -> tuple[type[dict[str, MetadataValue]], tuple[dict[str, MetadataValue]]]:
        return dict, (dict(self),)


def _read_header(path: str) -> Header:
    status = os.stat(path)
    if stat.S_ISDIR(status.st_mode):
        published = os.path.exists(os.path.join(path, "config.json"))  # Hugging Face's format
        advice = "ollama-engine convert makes a .gguf file of it" if published else "pass the .gguf file inside of it"
        raise IsADirectoryError(errno.EISDIR, f"is a directory; {advice}", path)
    if not stat.S_ISREG(status.st_mode):
        raise ModelFormatError(f"{path}: not a regular file; pass the path of a .gguf file")
    with open(path, "rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        start = _Start(path, file, size)
        nbytes = _FIRST_READ
        while True:
            data = start.read(min(nbytes, size))
            try:
                return Header(data, size)
            except HeaderFaultError as refusal:
                fault = refusal.fault
            if fault.status != "need_more":
                raise fault_error(path, fault, bytes(data[:64]))
            nbytes = min(max(fault.want, nbytes + nbytes // 2), MAX_HEADER)


class _Start:
    """A growing buffer of the first bytes of a file. Each byte is read once."""

    def __init__(self, path: str, file: FileIO, size: int) -> None:
        self._path = path
        self._file = file
        self._size = size
        self._have = 0
        self._room = self._take(min(size, _ROOM))

    def read(self, nbytes: int) -> memoryview:
        """The first `nbytes` bytes. Raises ModelFormatError where the file has become shorter than that."""
        if nbytes > len(self._room):
            before, self._room = self._room, self._take(min(self._size, MAX_HEADER))
            self._room[: self._have] = before[: self._have]
        while self._have < nbytes:
            got = self._file.readinto(self._room[self._have : nbytes])
            if not got:
                raise ModelFormatError(
                    f"{self._path}: the file became shorter while it was read; is it still being written?"
                )
            self._have += got
        return self._room[:nbytes]

    @staticmethod
    def _take(size: int) -> memoryview:
        """Allocate `size` bytes that the system backs page by page, as they are written."""
        try:
            return memoryview(mmap.mmap(-1, max(1, size), flags=mmap.MAP_PRIVATE))
        except OSError as error:
            raise NoMemoryError(f"no memory to read the GGUF header: {error}") from error


# -- split models ------------------------------------------------------------------------------------------------------


def _split_field(path: str, header: Header, name: str) -> int | None:
    """`split.<name>` of one part; u16 by convention, any integer is taken."""
    key = f"split.{name}"
    if key not in header.keys:
        return None
    value = header.value(header.keys.index(key))
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ModelFormatError(f"{path}: metadata key {key!r} is {value!r}, expected a count; split the model again")
    return value


def _split_count(path: str, header: Header) -> int:
    return _split_field(path, header, "count") or 1


def _part_paths(path: str, count: int) -> tuple[str, ...]:
    """The paths of all parts of a split model, derived from the path of one part."""
    folder, name = os.path.split(path)
    match = _PART_NAME.fullmatch(name)
    if match is None or int(match["count"]) != count:
        raise ModelFormatError(
            f"{path}: this is one of {count} parts of a split model, so its name must end in "
            f"-<number>-of-{count:05d}.gguf for the others to be found; give all parts their original names"
        )
    return tuple(os.path.join(folder, f"{match['prefix']}-{i:05d}-of-{count:05d}.gguf") for i in range(1, count + 1))


def _open_parts(paths: tuple[str, ...], given_path: str, given: Header) -> list[Header]:
    missing = [os.path.basename(path) for path in paths if not os.path.exists(path)]
    if missing:
        shown = ", ".join(missing[:5]) + (f" and {len(missing) - 5} more" if len(missing) > 5 else "")
        raise ModelFormatError(
            f"{given_path}: this model is split into {len(paths)} files, and of these are missing: {shown}; "
            "put all parts into one folder"
        )
    parts = []
    for number, path in enumerate(paths):
        part = given if os.path.samefile(path, given_path) else _read_header(path)
        parts.append(part)
        stored = (_split_field(path, part, "no"), _split_field(path, part, "count"))
        if stored != (number, len(paths)):
            raise ModelFormatError(
                f"{path}: by its name this is part {number + 1} of {len(paths)}, but it holds split.no = {stored[0]} "
                f"and split.count = {stored[1]}, expected {number} and {len(paths)}; give the parts their "
                "original names"
            )
    return parts


def _merge_tensors(paths: tuple[str, ...], parts: list[Header]) -> dict[str, TensorInfo]:
    merged: dict[str, TensorInfo] = {}
    for file, part in enumerate(parts):
        for fields in part.tensors():
            tensor = TensorInfo(*fields, file)
            other = merged.setdefault(tensor.name, tensor)
            if other is not tensor:
                raise ModelFormatError(
                    f"{paths[file]}: tensor {tensor.name!r} is also in {os.path.basename(paths[other.file])}; "
                    "these parts do not belong together, download them again"
                )
    return merged


def _check_tensor_count(paths: tuple[str, ...], metadata: Mapping[str, MetadataValue], n_tensors: int) -> None:
    expected = metadata.get("split.tensors.count")
    if len(paths) > 1 and expected is not None and expected != n_tensors:
        raise ModelFormatError(
            f"{paths[0]}: the parts of this model hold {n_tensors} tensors together, but split.tensors.count is "
            f"{expected}; they do not belong together, download them again"
        )
