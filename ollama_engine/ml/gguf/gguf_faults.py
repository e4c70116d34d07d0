"""Messages about damaged GGUF files: one for every fault of a header that csrc/gguf/gguf_check.c refuses."""

from __future__ import annotations

from dataclasses import dataclass

from ollama_engine.errors import ModelFormatError, UnsupportedModelError

__all__ = ["Fault", "HeaderFaultError", "fault_error"]

_VALUE_TYPES = ("u8", "i8", "u16", "i16", "u32", "i32", "f32", "bool", "string", "array", "u64", "i64", "f64")

# First bytes of files that people hand over by mistake, longest matches first.
_OTHER_FORMATS = (
    (b"version https://git-lfs", "it is a Git LFS pointer, not the model itself: fetch the file with `git lfs pull`"),
    (b"<!doctype html", "it is a web page: the download was answered with HTML, perhaps a login page"),
    (b"<html", "it is a web page: the download was answered with HTML, perhaps a login page"),
    (b"PK\x03\x04", "it is a zip archive or a PyTorch checkpoint: convert the model to GGUF first"),
    (b"\x80\x02", "it is a Python pickle, probably an old PyTorch checkpoint: convert the model to GGUF first"),
    (b"\x1f\x8b", "it is compressed with gzip: unpack it first"),
    (b"\x28\xb5\x2f\xfd", "it is compressed with zstd: unpack it first"),
    (b"lmgg", "it is an old GGML file (before GGUF): convert the original model again"),
    (b"fmgg", "it is an old GGMF file (before GGUF): convert the original model again"),
    (b"tjgg", "it is an old GGJT file (before GGUF): convert the original model again"),
    (b"algg", "it is an old GGLA adapter (before GGUF): convert the original adapter again"),
    (b"\x00\x00\x00\x00", "it starts with zero bytes: the download reserved the space but did not finish"),
)


@dataclass(frozen=True)
class Fault:
    """One refusal of the header walk, with the meaning of `got` and `want` as csrc/gguf/gguf_check.h lists them."""

    status: str
    offset: int
    got: int
    want: int
    index: int
    what: str
    name: str | None


class HeaderFaultError(Exception):
    """Carries a Fault from the header walk to the code that knows the file's path. Never leaves this package."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.status)
        self.fault = fault


def fault_error(path: str, fault: Fault, head: bytes) -> ModelFormatError:
    """The exception for `fault` in the file at `path`, which starts with `head`."""
    kind = UnsupportedModelError if fault.status in _UNSUPPORTED else ModelFormatError
    if fault.status == "magic":
        return kind(f"{path}: not a GGUF file; {_guess_format(head)}")
    return kind(f"{path}: {_describe(fault)} (byte {fault.offset})")


def _guess_format(head: bytes) -> str:
    if not head:
        return "it is empty"
    lowered = head.lstrip().lower()
    for start, meaning in _OTHER_FORMATS:
        if head.startswith(start) or (start.isascii() and lowered.startswith(start)):
            return meaning
    if head[8:10] == b'{"':
        return "it is a safetensors file: convert the model to GGUF first"
    if lowered.startswith(b"{"):
        return "it is JSON: pass the model's .gguf file"
    return f"it starts with {head[:4]!r}, expected b'GGUF'"


def _describe(fault: Fault) -> str:
    template = _MESSAGES[fault.status]
    return template.format(
        subject=_subject(fault),
        what=fault.what,
        got=fault.got,
        want=fault.want,
        type=_VALUE_TYPES[fault.got] if fault.got < len(_VALUE_TYPES) else fault.got,
        extent=fault.got if fault.got < 1 << 63 else fault.got - (1 << 64),
        size=len((fault.name or "").encode("utf-8", "surrogateescape")),
    )


def _subject(fault: Fault) -> str:
    kind = "tensor" if "tensor" in fault.what else "metadata key"
    if fault.name is not None:
        name = fault.name if len(fault.name) <= _LONGEST_SHOWN else fault.name[:_LONGEST_SHOWN] + "..."
        return f"{kind} {name!r}"
    return f"{kind} number {fault.index}" if fault.index >= 0 else "the header"


_LONGEST_SHOWN = 80
_UNSUPPORTED = frozenset({"byte_order", "version", "tensor_type", "nested_array"})
_DAMAGED = "; the file is corrupted, download it again"
_MESSAGES = {
    "byte_order": "the file was written for a machine of the other byte order; convert it with llama.cpp's "
    "gguf_convert_endian.py",
    "version": "GGUF version {got} cannot be read, only 2 and 3; convert the original model again",
    "truncated": "the file is truncated: reading {what} ({subject}) needs {want} more bytes, only {got} are left; "
    "download it again",
    "header_size": "the header would be longer than {want} bytes" + _DAMAGED,
    "count": "{what} is given as {got}, but a file of this size holds at most {want}; it is truncated or corrupted, "
    "download it again",
    "string_length": "{what} ({subject}) is a string of {got} bytes, but only {want} bytes are left; the file is "
    "truncated or corrupted, download it again",
    "empty_name": "the name of {subject} is empty" + _DAMAGED,
    "zero_in_name": "the name of {subject} holds a zero byte" + _DAMAGED,
    "duplicate_key": "{subject} appears twice; keys must be unique, convert the model again",
    "value_type": "{subject} has the unknown value type {got}, expected 0 to {want}" + _DAMAGED,
    "nested_array": "{subject} is an array of arrays, which ggml does not read; convert the model again without it",
    "array_length": "{subject} is an array of {got} elements, but the file holds at most {want} more; it is truncated "
    "or corrupted, download it again",
    "alignment_type": "{subject} is of type {type}, expected u32; convert the model again",
    "alignment": "{subject} is {got}, expected a power of two up to {want}; convert the model again",
    "name_length": "the name of {subject} is {size} bytes long, at most {want} are allowed; convert the model again",
    "duplicate_tensor": "{subject} appears twice; tensor names must be unique, convert the model again",
    "dimensions": "{subject} has {got} dimensions, at most {want} are allowed" + _DAMAGED,
    "extent": "{subject} has {extent} elements in dimension {want}, expected at least 1" + _DAMAGED,
    "elements": "{subject} has more elements than can be counted" + _DAMAGED,
    "tensor_type": "{subject} has the type number {got}, which this version of ggml does not know (removed, newer than "
    "this package, or 4 of Ollama's first gpt-oss files); update ollama_engine or convert the model again",
    "block": "{subject} has rows of {got} elements, but its type packs them in blocks of {want}; convert the "
    "model again",
    "offset": "the data of {subject} is placed at {got}, expected {want} right after the tensor before it; convert the "
    "model again",
    "data_range": "the file is truncated: {subject} needs bytes up to {want}, but the file has {got}; download it "
    "again",
}
