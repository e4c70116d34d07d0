"""Whether this CPU has the instructions that this build uses throughout (csrc/base/cpu_lacks.h).

A native build's ggml dies on a lesser CPU with SIGILL, maybe while it is loaded. This module does not link it, so that
it can be asked before. A portable build asks for nothing: it has a variant of ggml for each kind of CPU.
"""

from libc.stdint cimport uint32_t


cdef extern from "base/cpu_lacks.h" nogil:
    const uint32_t oe_built_for
    uint32_t oe_cpu_lacks()
    const char *oe_cpu_feature_name(int number)


cdef tuple _names(uint32_t features):
    return tuple([(<bytes>oe_cpu_feature_name(n)).decode() for n in range(32) if features >> n & 1])


def required_instructions():
    """Names of instruction sets that this build needs, such as "avx2"; () for a portable build."""
    return _names(oe_built_for)


def missing_instructions():
    """Those of required_instructions() that this CPU lacks."""
    return _names(oe_cpu_lacks())
