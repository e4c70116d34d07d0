"""Chooses the kernel for a product, and the copy of the weight that it reads, by the number of rows.

On the CPU there are three ways: our small-batch kernels and ggml's general kernels, which both read the weight as it
lies in the file, and ggml's kernels on a repacked copy. All are equally accurate, so the fastest is chosen. `TABLE`
says for each kind of CPU where our kernels are the fastest. `python bench/kernel_choice.py` measures that table; the
figures are in docs/performance-history.md. On the CPU at hand, `make bench-check` fails where one of ggml's kernels
would be faster than ours (of six types; BENCH_CHECK=--all: of every type). Other devices have ggml's kernels only. A
backend may have a `KernelChoice` of its own, such as one that kernel_timings.py makes of what was measured here.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from ollama_engine.ml.graph.computation import Computation
from ollama_engine.ml.graph.context import Context
from ollama_engine.ml.graph.tensor import Tensor
from ollama_engine.ml.ops.experts import await_experts, mul_mat_id_small_batch
from ollama_engine.ml.ops.nn import mul_mat, mul_mat_id
from ollama_engine.ml.ops.operands import on_cpu_alone
from ollama_engine.ml.ops.shape import repeat, view
from ollama_engine.ml.ops.small_batch import (
    SMALL_BATCH_QUANTIZED,
    cpu_traits,
    mul_mat_small_batch,
    mul_mats_small_batch,
    reads_in_place,
)  # fmt: skip
from ollama_engine.ml.weights.kernel_variants import DEFAULT_VARIANT, FEW_ROWS, FewRows, start_variants

if TYPE_CHECKING:
    from ollama_engine.ml.graph.backend import Backend


@dataclass(frozen=True, slots=True)
class Borders:
    """The range of row counts for which our kernels are at least as fast as ggml's, for one weight type."""

    first: int
    """Fewest rows of activations; 1, unless ggml is faster with a single row."""
    last: int
    """Most rows of activations."""
    last_long: int | None = None
    """Most rows of activations where the rows are longer than LONG; None: as `last`."""
    per_expert: int = 0
    """Mixture of experts: most rows per expert, as an average over the experts; 0: not measured."""


LONG = 2048
"""Length in elements beyond which rows of activations no longer stay in the L1 cache."""

ALL = 1 << 16
"""`last` of a kernel that wins with all numbers of rows that were measured, up to 512. A row of its results has the
same bits in any batch."""

REPACKED_ROWS = 16
"""K-quants with fewer rows read the repacked copy; from here on, ggml's kernel for the original is faster."""

_BLOCKS_OF_32 = dict.fromkeys(
    ("q4_0", "q8_0", "mxfp4", "q4_1", "q5_0", "q5_1", "iq4_nl"), Borders(1, ALL, per_expert=256)
)

_AVX512_VNNI = {
    "q4_K": Borders(1, ALL, per_expert=256),
    "q6_K": Borders(1, ALL, per_expert=256),
    "q5_K": Borders(1, ALL, per_expert=256),
    "q3_K": Borders(1, ALL, per_expert=256),
    "q2_K": Borders(1, ALL, per_expert=256),
    "iq4_xs": Borders(1, ALL, per_expert=256),
    **_BLOCKS_OF_32,
    "f16": Borders(1, ALL),
    "bf16": Borders(1, ALL),  # with VDPBF16PS, which every such CPU of AMD has
}

_WITHOUT_AVX512 = {
    "q4_K": Borders(1, ALL, per_expert=256),
    "q6_K": Borders(2, ALL, per_expert=64),
    "q5_K": Borders(1, ALL, per_expert=64),
    "q3_K": Borders(1, ALL, per_expert=64),
    "q2_K": Borders(1, ALL, per_expert=64),
    "iq4_xs": Borders(1, ALL, per_expert=64),
    **_BLOCKS_OF_32,
    "f16": Borders(1, 4),
    "bf16": Borders(1, 8),
}

_MEASURED: dict[str, dict[str, Borders]] = {
    "avx512vnni": _AVX512_VNNI,
    "avx512vnni-intel": _AVX512_VNNI
    | {
        "q4_K": Borders(1, ALL, per_expert=64),
        "q6_K": Borders(1, 64, per_expert=64),
        "q5_K": Borders(1, ALL, per_expert=64),
        "q3_K": Borders(1, ALL, per_expert=64),
        "q2_K": Borders(1, ALL, per_expert=64),
        "iq4_xs": Borders(1, ALL, per_expert=64),
        "bf16": Borders(1, 4, last_long=1),
    },
    "amx": {
        **{dtype: Borders(1, ALL, per_expert=ALL) for dtype in SMALL_BATCH_QUANTIZED},
        "f16": Borders(1, 6),
        "bf16": Borders(1, 4, last_long=1),
    },
    "avxvnni": _WITHOUT_AVX512,
    "avx2": _WITHOUT_AVX512,
}
"""Measured on AMD Zen 4 and Zen 5 and on an Intel Xeon; AVX2 and AVX-VNNI against a ggml built without AVX-512.

Q5_K, Q3_K, Q2_K, IQ4_XS, Q4_1, Q5_0, Q5_1 and IQ4_NL, experts without AVX-512 (but for Q6_K), and MXFP4 there, were
measured on the Xeon alone. Other CPUs have the borders of Q4_K and Q6_K, or of Q4_0 and Q8_0, whose kernels are the
same but for the codes.
"""

TABLE: Mapping[str, Mapping[str, Borders]] = {
    **_MEASURED,
    "avx512": _MEASURED["avx2"] | {"q6_K": Borders(2, 64), "f16": Borders(1, 2), "bf16": Borders(1, 2)},
    "neon": {dtype: Borders(1, ALL, per_expert=64) for dtype in SMALL_BATCH_QUANTIZED},
}
"""`_MEASURED`; NEON, unmeasured, where the first load's times decide; and AVX-512 without VNNI
(Skylake-X): our AVX2 kernels there against ggml's variant for that CPU.

Measured on an Intel Xeon with its better instructions left unused. They win as they do against ggml with AVX2, but for
weights of 16 bits; Q6_K was not measured there with more than 64 rows since it has panels.
"""


def kind_of_cpu(traits: Collection[str]) -> str:
    """The key of TABLE for a CPU with these traits (see `cpu_traits`); "" means ggml's kernels for everything.

    Without AVX2 or SDOT our kernels are plain C, and ggml's are faster.
    """
    if "amx" in traits:
        return "amx"
    if "avx512" in traits:
        if "avx512vnni" not in traits:
            return "avx512"
        return "avx512vnni-intel" if "intel" in traits else "avx512vnni"
    return next((name for name in ("avxvnni", "avx2", "neon") if name in traits), "")


@dataclass(frozen=True, slots=True)
class KernelChoice:
    """The products, and attention or not, that our kernels compute on the CPU; all else is ggml's."""

    borders: Mapping[str, Borders]
    """By weight type."""
    variants: Mapping[FewRows, str] = field(default_factory=lambda: MappingProxyType({}))
    """Of our kernels (`SMALL_BATCH_VARIANTS`). They give the same bits."""
    measured: tuple[str, ...] = ()
    """What was chosen by measurement, a line for each type; nothing where the table alone decides."""
    attention: bool = True
    """Whether keys and values are read by `ops.paged_attention` where that is the fast choice."""

    def rows(self, dtype: str, length: int) -> range:
        """Row counts for which our kernels are chosen, for weights with rows of `length` elements."""
        borders = self.borders.get(dtype)
        if borders is None:
            return range(0)
        last = borders.last_long if borders.last_long is not None and length > LONG else borders.last
        return range(borders.first, last + 1)

    def rows_per_expert(self, dtype: str) -> int:
        """Most rows per expert, on average, for which our kernels are chosen."""
        borders = self.borders.get(dtype)
        return borders.per_expert if borders is not None else 0

    def has_any_rows(self, dtype: str, *, experts: bool) -> bool:
        """Whether our kernels are chosen for all numbers of rows, so that a prompt has the bits of its tokens one by
        one; of experts they never are.
        """
        borders = self.borders.get(dtype)
        if borders is None or experts:
            return False
        return borders.first == 1 and borders.last >= ALL and borders.last_long is None

    def same_bits(self, weight: Tensor, rows: int) -> bool:
        """Whether a row of this weight's products has the same bits alone and among up to so many.

        Products of f32, and those of experts and maps of heads with 16 bits, are ggml's: see ROWS_OF_F32_ALIKE.
        """
        ours = self.rows(weight.dtype, weight.dim(0))
        if weight.dim(2) > 1:
            if weight.dtype in ("f32", "f16", "bf16"):
                return ROWS_OF_F32_ALIKE
            return rows <= self.rows_per_expert(weight.dtype)
        if weight.dtype == "f32":
            return ROWS_OF_F32_ALIKE
        return 1 in ours and rows in ours and reads_in_place(weight)

    def variant(self, dtype: str, rows: int, *, experts: bool = False) -> str:
        """How our kernel fetches weights."""
        if not self.variants:
            return DEFAULT_VARIANT
        chosen = (self.variants.get(FewRows(dtype, n, experts)) for n in reversed(FEW_ROWS) if n <= rows)
        return next((variant for variant in chosen if variant is not None), DEFAULT_VARIANT)

    def wants_repacked(self, dtype: str, *, experts: bool) -> bool:
        """Whether products of such weights read a repacked copy, if ggml can make one."""
        return not (self.rows_per_expert(dtype) if experts else self.rows(dtype, LONG))


def choice_by_table(cpu: str) -> KernelChoice:
    """The choice for this kind of CPU."""
    return KernelChoice(TABLE.get(cpu, {}))


THIS_CPU = kind_of_cpu(cpu_traits())
ROWS_OF_F32_ALIKE = "neon" not in cpu_traits()
"""Whether ggml gives a row of a product with f32 weights, or with many maps of 16 bits, the same bits in any batch. On
ARM64 it does not."""
BY_TABLE = replace(choice_by_table(THIS_CPU), variants=start_variants(cpu_traits()))
GGML = KernelChoice({}, attention=False)
"""ggml's kernels alone, to compare with."""


def kernels_of(backend: Backend) -> KernelChoice:
    """The kernel choice of this backend's products and caches."""
    return backend.kernels or BY_TABLE


def choose_copy(weight: Tensor, rows: int) -> Tensor:
    """The copy of a weight, original or repacked, with which ggml is faster at this number of rows."""
    if weight.repacked is not None and (rows < REPACKED_ROWS or not weight.dtype.endswith("_K")):
        return weight.repacked
    return weight


def product(weight: Tensor, x: Tensor) -> Tensor:
    """weight [n, m] times x [n, rows] -> f32 [m, rows]."""
    return products([weight], x)[0]


def product_of_many(weight: Tensor, x: Tensor) -> Tensor:
    """`product` for thousands of rows, none of which ever comes alone: F16 in the way that is fast for them."""
    if weight.dtype != "f16":
        return product(weight, x)
    kernels, rows = _kernels(x), x.dim(1)
    if rows in kernels.rows("f16", weight.dim(0)) and reads_in_place(weight):
        return mul_mat_small_batch(weight, x, variant=kernels.variant("f16", rows), whole=True)
    return mul_mat(weight, x)


def products(weights: Sequence[Tensor], x: Tensor) -> list[Tensor]:
    """`product` of each weight. Those of our kernels are computed side by side: threads wait for each other once."""
    kernels, rows = _kernels(x), x.dim(1)
    matrix = x.dim(2) == x.dim(3) == 1
    ours = [w for w in weights if matrix and rows in kernels.rows(w.dtype, w.dim(0)) and reads_in_place(w)]
    results = iter(mul_mats_small_batch(ours, x, [kernels.variant(w.dtype, rows) for w in ours]))
    return [next(results) if any(w is one for one in ours) else _product_by_ggml(w, x) for w in weights]


def _product_by_ggml(weight: Tensor, x: Tensor) -> Tensor:
    rows = x.dim(1)
    matrices = weight.dim(2) == weight.dim(3) == x.dim(2) == x.dim(3) == 1
    if rows == 1 and weight.dtype == "f32" and matrices and on_cpu_alone(x):
        # ggml's kernel for a single row rounds otherwise than the one for more, and is no faster.
        return view(mul_mat(weight, repeat(x, x.dim(0), 2)), (weight.dim(1), 1))
    return mul_mat(choose_copy(weight, rows), x)


def expert_product(experts: Tensor, x: Tensor, ids: Tensor) -> Tensor:
    """experts [n, m, e] times x [n, used or 1, tokens], of which ids [used, tokens] name the experts.

    -> f32 [m, used, tokens].
    """
    if experts.cached is None:
        return _expert_product(experts, x, ids)
    present, product = await_experts(experts, ids), _expert_product(experts, x, ids)
    graph = product.owner
    assert isinstance(graph, Context), "products are in a graph"
    graph.expand(present, product)  # before it waits for the next matrix, which is read meanwhile
    return product


def _expert_product(experts: Tensor, x: Tensor, ids: Tensor) -> Tensor:
    routes, n_expert, kernels = ids.dim(0) * ids.dim(1), experts.dim(2), _kernels(x)
    if routes <= kernels.rows_per_expert(experts.dtype) * n_expert and reads_in_place(experts):
        variant = kernels.variant(experts.dtype, max(1, routes // n_expert), experts=True)
        return mul_mat_id_small_batch(experts, x, ids, None, variant)
    return mul_mat_id(choose_copy(experts, x.dim(2)), x, ids)


def head_product(heads: Tensor, x: Tensor, ids: Tensor) -> Tensor:
    """As `expert_product` where each row has its own matrix: as many for each of them, so ours for any number of rows.

    heads [n, m, h], x [n, h, tokens], ids [h, tokens] -> f32 [m, h, tokens].
    """
    kernels = _kernels(x)
    if kernels.rows_per_expert(heads.dtype) and reads_in_place(heads):
        return mul_mat_id_small_batch(heads, x, ids, None, kernels.variant(heads.dtype, x.dim(2), experts=True))
    return mul_mat_id(choose_copy(heads, x.dim(2)), x, ids)


def _kernels(x: Tensor) -> KernelChoice:
    """The choice of the backend that activations are computed on."""
    return kernels_of(x.owner.backend) if isinstance(x.owner, Computation) else BY_TABLE
