"""Whether this CPU has the instructions that this build uses throughout (csrc/base/cpu_lacks.h).

A native build's ggml dies on a lesser CPU with SIGILL, maybe while it is loaded. This module does not link it, so that
it can be asked before. A portable build asks for nothing: it has a variant of ggml for each kind of CPU.
"""

from libc.stdint cimport uint32_t


cdef extern from "base/cpu_lacks.h" nogil:
    uint32_t oe_cpu_lacks()
    const char *oe_cpu_feature_name(int number)


def missing_instructions():
    """Names of instruction sets that this build needs and this CPU lacks, such as "avx2"."""
    cdef uint32_t lacks = oe_cpu_lacks()
    return tuple([(<bytes>oe_cpu_feature_name(n)).decode() for n in range(32) if lacks >> n & 1])
