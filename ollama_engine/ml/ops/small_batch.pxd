from libc.stdint cimport int64_t

from ollama_engine.ml.ggml cimport libggml as lib
from ollama_engine.ml.ggml.libsmallbatch cimport oe_sb_kernel, oe_sb_multiplying
from ollama_engine.ml.graph.tensor cimport Graph, Tensor


cdef const oe_sb_kernel *kernel_of(str op, tuple types, Tensor weight, str instructions, bint whole=*) except NULL
cdef oe_sb_multiplying *multiplying_by(str op, Graph graph, const oe_sb_kernel *kernel, str variant) except NULL
cdef lib.ggml_tensor *custom(Graph graph, const int64_t *ne, lib.ggml_type type, lib.ggml_tensor **operands, int n,
                             lib.ggml_custom_op_t run, int n_tasks, void *userdata) except NULL
