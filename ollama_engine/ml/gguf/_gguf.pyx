"""The header of one GGUF file: checked by csrc/gguf/gguf_check.c, then read through ggml's gguf functions.

Owns the only gguf_context pointers of the package. Files, split models and the public classes are in gguf.py.
"""

cimport cython
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.string cimport memcpy, memset, strlen

from ollama_engine.ml.ggml cimport libgguf as lib
from ollama_engine.ml.ggml cimport libggufcheck as chk

import numpy as np

from ollama_engine.errors import ClosedError, NoMemoryError
from ollama_engine.ml.gguf.gguf_faults import Fault, HeaderFaultError

MAX_HEADER = chk.OE_GGUF_MAX_HEADER

cdef dict _STATUS = {
    chk.OE_GGUF_NEED_MORE: "need_more",
    chk.OE_GGUF_NO_MEMORY: "no_memory",
    chk.OE_GGUF_MAGIC: "magic",
    chk.OE_GGUF_BYTE_ORDER: "byte_order",
    chk.OE_GGUF_VERSION: "version",
    chk.OE_GGUF_TRUNCATED: "truncated",
    chk.OE_GGUF_HEADER_SIZE: "header_size",
    chk.OE_GGUF_COUNT: "count",
    chk.OE_GGUF_STRING_LENGTH: "string_length",
    chk.OE_GGUF_EMPTY_NAME: "empty_name",
    chk.OE_GGUF_ZERO_IN_NAME: "zero_in_name",
    chk.OE_GGUF_DUPLICATE_KEY: "duplicate_key",
    chk.OE_GGUF_VALUE_TYPE: "value_type",
    chk.OE_GGUF_NESTED_ARRAY: "nested_array",
    chk.OE_GGUF_ARRAY_LENGTH: "array_length",
    chk.OE_GGUF_ALIGNMENT_TYPE: "alignment_type",
    chk.OE_GGUF_ALIGNMENT: "alignment",
    chk.OE_GGUF_NAME_LENGTH: "name_length",
    chk.OE_GGUF_DUPLICATE_TENSOR: "duplicate_tensor",
    chk.OE_GGUF_DIMENSIONS: "dimensions",
    chk.OE_GGUF_EXTENT: "extent",
    chk.OE_GGUF_ELEMENTS: "elements",
    chk.OE_GGUF_TENSOR_TYPE: "tensor_type",
    chk.OE_GGUF_BLOCK: "block",
    chk.OE_GGUF_OFFSET: "offset",
    chk.OE_GGUF_DATA_RANGE: "data_range",
}

# numpy's type for the elements of an array; bool is stored as int8 and made bool here.
cdef dict _DTYPES = {
    <int>lib.GGUF_TYPE_UINT8: np.uint8,
    <int>lib.GGUF_TYPE_INT8: np.int8,
    <int>lib.GGUF_TYPE_UINT16: np.uint16,
    <int>lib.GGUF_TYPE_INT16: np.int16,
    <int>lib.GGUF_TYPE_UINT32: np.uint32,
    <int>lib.GGUF_TYPE_INT32: np.int32,
    <int>lib.GGUF_TYPE_FLOAT32: np.float32,
    <int>lib.GGUF_TYPE_BOOL: np.int8,
    <int>lib.GGUF_TYPE_UINT64: np.uint64,
    <int>lib.GGUF_TYPE_INT64: np.int64,
    <int>lib.GGUF_TYPE_FLOAT64: np.float64,
}


cdef object _text(const char *start, size_t length):
    return PyUnicode_DecodeUTF8(start, <Py_ssize_t>length, "surrogateescape")


cdef object _fault(const chk.oe_gguf_fault *fault):
    name = None if fault.name == NULL else _text(fault.name, min(fault.name_length, <size_t>4096))
    what = "" if fault.what == NULL else fault.what.decode()
    return Fault(_STATUS[fault.status], fault.offset, fault.got, fault.want, fault.index, what, name)


cdef list _strings_with_zeros(const uint8_t *data, const chk.oe_gguf_kv *kv):
    """The strings of a value by their stored lengths; the walk has proven that they lie inside `data`."""
    cdef list strings = []
    cdef uint64_t at = kv.value, length = 0, _i
    for _i in range(kv.count):
        memcpy(&length, data + at, sizeof(length))
        strings.append(_text(<const char *>data + at + sizeof(length), length))
        at += sizeof(length) + length
    return strings


@cython.final
cdef class Header:
    """Keys, values and tensor places of one file.

    Args:
        data: the first bytes of the file.
        file_size: the size of the whole file in bytes.

    Raises:
        HeaderFaultError: with status "need_more" when `data` is too short, `want` saying how much of the file it must
            hold; with any other status when the file is refused.
        NoMemoryError: the header does not fit into memory.
    """

    cdef lib.gguf_context *_ctx
    cdef list _n_dims
    cdef dict _zero_strings
    cdef readonly list keys

    def __cinit__(self, const uint8_t[::1] data not None, uint64_t file_size):
        cdef chk.oe_gguf_layout layout
        memset(&layout, 0, sizeof(layout))
        try:
            self._check(data, file_size, &layout)
            self._keep(data, &layout)
            self._open(data, &layout)
        finally:
            chk.oe_gguf_layout_free(&layout)

    def __dealloc__(self):
        lib.gguf_free(self._ctx)

    cdef int _check(self, const uint8_t[::1] data, uint64_t file_size, chk.oe_gguf_layout *layout) except -1:
        cdef int64_t[lib.GGML_TYPE_COUNT] block_size, block_bytes
        cdef chk.oe_gguf_types types = chk.oe_gguf_types(&block_size[0], &block_bytes[0], lib.GGML_TYPE_COUNT)
        cdef chk.oe_gguf_fault fault
        cdef chk.oe_gguf_status status
        cdef uint8_t nothing = 0
        cdef const uint8_t *start = &data[0] if data.shape[0] else &nothing
        cdef size_t have = data.shape[0]
        cdef int i
        for i in range(lib.GGML_TYPE_COUNT):
            block_bytes[i] = lib.ggml_type_size(<lib.ggml_type>i)
            block_size[i] = lib.ggml_blck_size(<lib.ggml_type>i) if block_bytes[i] else 0
        with nogil:
            status = chk.oe_gguf_check(start, have, file_size, &types, layout, &fault)
        if status == chk.OE_GGUF_NO_MEMORY:
            raise NoMemoryError("not enough memory to read the GGUF header")
        if status != chk.OE_GGUF_OK:
            raise HeaderFaultError(_fault(&fault))
        return 0

    cdef int _keep(self, const uint8_t[::1] data, const chk.oe_gguf_layout *layout) except -1:
        """Copy what ggml's getters do not return: dimensions per tensor, and strings that contain zero bytes."""
        cdef int64_t i
        self._n_dims = [layout.tensors[i].n_dims for i in range(layout.n_tensors)]
        self._zero_strings = {
            i: _strings_with_zeros(&data[0], &layout.kv[i]) for i in range(layout.n_kv) if layout.kv[i].has_zero
        }
        return 0

    cdef int _open(self, const uint8_t[::1] data, const chk.oe_gguf_layout *layout) except -1:
        cdef lib.gguf_init_params params
        cdef int64_t i
        params.no_alloc = True
        params.ctx = NULL
        try:
            with nogil:
                self._ctx = lib.gguf_init_from_buffer(&data[0], layout.data_offset, params)
        except MemoryError:
            raise NoMemoryError("not enough memory to read the GGUF header") from None
        if self._ctx == NULL:
            # oe_gguf_check refuses all that ggml refuses: what is left is an allocation that failed inside of ggml
            raise NoMemoryError("not enough memory to keep the GGUF header (ggml's log says which value)")
        self.keys = [_text(lib.gguf_get_key(self._ctx, i), strlen(lib.gguf_get_key(self._ctx, i)))
                     for i in range(lib.gguf_get_n_kv(self._ctx))]
        return 0

    cdef lib.gguf_context *_open_ctx(self) except NULL:
        if self._ctx == NULL:
            raise ClosedError("this GGUF file was closed")
        return self._ctx

    @cython.critical_section
    def close(self):
        """Free ggml's copy of the header. Values already decoded stay valid."""
        lib.gguf_free(self._ctx)
        self._ctx = NULL
        self._zero_strings = {}

    @property
    def closed(self):
        return self._ctx == NULL

    @property
    @cython.critical_section
    def version(self):
        return lib.gguf_get_version(self._open_ctx())

    @property
    @cython.critical_section
    def alignment(self):
        return lib.gguf_get_alignment(self._open_ctx())

    @cython.critical_section
    def value(self, int64_t index):
        """The decoded value of key number `index`; arrays of numbers are read-only numpy copies."""
        cdef lib.gguf_context *ctx = self._open_ctx()
        if not 0 <= index < lib.gguf_get_n_kv(ctx):
            raise IndexError(index)
        if lib.gguf_get_kv_type(ctx, index) != lib.GGUF_TYPE_ARRAY:
            return self._scalar(ctx, index)
        if lib.gguf_get_arr_type(ctx, index) == lib.GGUF_TYPE_STRING:
            return self._strings(ctx, index)
        return _numbers(ctx, index)

    cdef object _scalar(self, lib.gguf_context *ctx, int64_t index):
        cdef int kind = lib.gguf_get_kv_type(ctx, index)
        if kind == lib.GGUF_TYPE_STRING:
            return self._string(ctx, index)
        return _values(kind, lib.gguf_get_val_data(ctx, index), 1).item()

    cdef object _string(self, lib.gguf_context *ctx, int64_t index):
        cdef const char *text = lib.gguf_get_val_str(ctx, index)
        return self._zero_strings[index][0] if index in self._zero_strings else _text(text, strlen(text))

    cdef list _strings(self, lib.gguf_context *ctx, int64_t index):
        cdef size_t i, n = lib.gguf_get_arr_n(ctx, index)
        cdef const char *text
        cdef list strings = []
        if index in self._zero_strings:
            return list(self._zero_strings[index])
        for i in range(n):
            text = lib.gguf_get_arr_str(ctx, index, i)
            strings.append(_text(text, strlen(text)))
        return strings

    @cython.critical_section
    def tensors(self):
        """(name, type name, shape in ggml order, offset in the file, bytes) of every tensor, in file order."""
        cdef lib.gguf_context *ctx = self._open_ctx()
        cdef uint64_t start = lib.gguf_get_data_offset(ctx)
        cdef const char *name
        cdef const int64_t *ne
        cdef int64_t i
        cdef int d
        cdef list rows = []
        for i in range(lib.gguf_get_n_tensors(ctx)):
            name = lib.gguf_get_tensor_name(ctx, i)
            ne = lib.gguf_get_tensor_ne(ctx, i)
            rows.append((
                _text(name, strlen(name)),
                lib.ggml_type_name(lib.gguf_get_tensor_type(ctx, i)).decode(),
                tuple([ne[d] for d in range(max(1, <int>self._n_dims[i]))]),
                start + lib.gguf_get_tensor_offset(ctx, i),
                lib.gguf_get_tensor_size(ctx, i),
            ))
        return rows


cdef object _values(int kind, const void *data, size_t n):
    """A copy of `n` values as an array of their type; bool where they are truth values."""
    cdef object values = np.empty(n, dtype=_DTYPES[kind])
    cdef uint8_t[::1] target = values.view(np.uint8)
    if n:
        memcpy(&target[0], data, target.shape[0])
    return values != 0 if kind == lib.GGUF_TYPE_BOOL else values


cdef object _numbers(const lib.gguf_context *ctx, int64_t index):
    cdef object numbers = _values(lib.gguf_get_arr_type(ctx, index), lib.gguf_get_arr_data(ctx, index),
                                  lib.gguf_get_arr_n(ctx, index))
    numbers.flags.writeable = False
    return numbers
