"""Shapes of real models for `make_model.py`: sizes, and which tensors of which dimensions a file of them has. And the
presets of types that it can write."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from ollama_engine.convert.quant.presets import PRESETS as LLAMA_CPP_PRESETS

PRESETS = {name.lower().removesuffix("_moe"): preset for name, preset in LLAMA_CPP_PRESETS.items()}

Dims = tuple[int, ...]


@dataclass(frozen=True)
class Latent:
    """Latent attention and the feed-forward blocks of such models; `head_dim` counts `n_rope` numbers as well."""

    n_latent: int
    n_rope: int
    value_dim: int
    n_narrow: int
    n_dense: int
    n_ff_dense: int
    n_shared: int


@dataclass(frozen=True)
class PerLayer:
    """Gemma 4's small models: an embedding for each layer, and heads of `head_dim` numbers in local layers only."""

    n_embd: int
    """Length of a token's embedding for one layer."""
    n_shared: int
    """The last so many layers attend to keys and values of earlier ones, and their n_ff is twice as large."""
    global_dim: int
    period: int
    """One layer in so many is global."""

    def is_global(self, layer: int) -> bool:
        return layer % self.period == self.period - 1


@dataclass(frozen=True)
class Shape:
    """A llama-like decoder; sizes have the meaning of the GGUF keys."""

    name: str
    n_layer: int
    n_embd: int
    n_ff: int
    n_head: int
    n_head_kv: int
    head_dim: int
    n_vocab: int
    n_ctx: int
    rope_base: float
    norm_eps: float
    bos: int
    eos: int
    n_special: int
    arch: str = "llama"
    qkv_bias: bool = False
    rope_factor: float | None = None
    n_expert: int = 0
    """0: one feed-forward block of size n_ff. Otherwise n_ff is the size of one expert."""
    n_expert_used: int = 0
    window: int = 0
    latent: Latent | None = None
    """Of models with latent attention; n_head_kv is 1 then."""
    per_layer: PerLayer | None = None
    tied: bool = True
    """Whether the output has the weights of the embedding."""
    keys: Mapping[str, int | list[int]] = field(default_factory=dict)
    """Metadata of this architecture alone."""
    specials: tuple[str, ...] = ()
    """Names of the first special tokens."""

    @property
    def n_text_tokens(self) -> int:
        return self.n_vocab - self.n_special


# Those with experts have few layers and a small vocabulary, so that experts weigh in a step about what they do in the
# whole model: Qwen3-30B-A3B has 48 layers of 128 experts, gpt-oss-20b 24 layers.
SHAPES = {
    "llama-1b": Shape(
        name="Llama-3.2-1B shape", n_layer=16, n_embd=2048, n_ff=8192, n_head=32, n_head_kv=8, head_dim=64,
        n_vocab=128256, n_ctx=131072, rope_base=500000.0, norm_eps=1e-5, bos=128000, eos=128001, n_special=256,
        rope_factor=32.0,
    ),
    "llama-8b": Shape(
        name="Llama-3.1-8B shape", n_layer=32, n_embd=4096, n_ff=14336, n_head=32, n_head_kv=8, head_dim=128,
        n_vocab=128256, n_ctx=131072, rope_base=500000.0, norm_eps=1e-5, bos=128000, eos=128001, n_special=256,
        rope_factor=8.0, tied=False,
    ),
    "qwen-0.5b": Shape(
        name="Qwen2.5-0.5B shape", n_layer=24, n_embd=896, n_ff=4864, n_head=14, n_head_kv=2, head_dim=64,
        n_vocab=151936, n_ctx=32768, rope_base=1000000.0, norm_eps=1e-6, bos=151643, eos=151645, n_special=293,
        qkv_bias=True,
    ),
    "qwen-1.5b": Shape(
        name="Qwen2.5-1.5B shape", n_layer=28, n_embd=1536, n_ff=8960, n_head=12, n_head_kv=2, head_dim=128,
        n_vocab=151936, n_ctx=32768, rope_base=1000000.0, norm_eps=1e-6, bos=151643, eos=151645, n_special=293,
        qkv_bias=True,
    ),
    "gemma-1b": Shape(
        name="Gemma 3 1B shape", n_layer=26, n_embd=1152, n_ff=6912, n_head=4, n_head_kv=1, head_dim=256,
        n_vocab=262144, n_ctx=32768, rope_base=1000000.0, norm_eps=1e-6, bos=262000, eos=262001, n_special=256,
        arch="gemma3", window=512,
    ),
    "qwen3-moe": Shape(
        name="Qwen3-30B-A3B shape, 4 layers of 64 experts", n_layer=4, n_embd=2048, n_ff=768, n_head=32, n_head_kv=4,
        head_dim=128, n_vocab=16384, n_ctx=40960, rope_base=1000000.0, norm_eps=1e-6, bos=16000, eos=16001,
        n_special=384, arch="qwen3moe", n_expert=64, n_expert_used=8,
    ),
    "gpt-oss": Shape(
        name="gpt-oss-20b shape, 2 layers", n_layer=2, n_embd=2880, n_ff=2880, n_head=64, n_head_kv=8, head_dim=64,
        n_vocab=16384, n_ctx=131072, rope_base=150000.0, norm_eps=1e-5, bos=16000, eos=16001, n_special=384,
        arch="gpt-oss", qkv_bias=True, n_expert=32, n_expert_used=4, window=128, tied=False,
    ),
    "qwen3-30b": Shape(
        name="Qwen3-30B-A3B shape", n_layer=48, n_embd=2048, n_ff=768, n_head=32, n_head_kv=4, head_dim=128,
        n_vocab=151936, n_ctx=40960, rope_base=1000000.0, norm_eps=1e-6, bos=151643, eos=151645, n_special=293,
        arch="qwen3moe", n_expert=128, n_expert_used=8, tied=False,
    ),
    "gpt-oss-20b": Shape(
        name="gpt-oss-20b shape", n_layer=24, n_embd=2880, n_ff=2880, n_head=64, n_head_kv=8, head_dim=64,
        n_vocab=201088, n_ctx=131072, rope_base=150000.0, norm_eps=1e-5, bos=200000, eos=200002, n_special=1088,
        arch="gpt-oss", qkv_bias=True, n_expert=32, n_expert_used=4, window=128, tied=False,
    ),
    "deepseek": Shape(
        name="DeepSeek-V2-Lite shape with V2's queries, a dense layer and 2 of 64 experts", n_layer=3, n_embd=2048,
        n_ff=1408, n_head=16, n_head_kv=1, head_dim=192, n_vocab=16384, n_ctx=32768, rope_base=10000.0, norm_eps=1e-6,
        bos=16000, eos=16001, n_special=384, arch="deepseek2", n_expert=64, n_expert_used=6, tied=False,
        latent=Latent(512, 64, 128, 1536, 1, 10944, 2),
    ),
    # 262,144 tokens in the whole model, whose embeddings for each layer take more memory than all else.
    "gemma4-e2b": Shape(
        name="Gemma 4 E2B shape", n_layer=35, n_embd=1536, n_ff=6144, n_head=8, n_head_kv=1, head_dim=256,
        n_vocab=16384, n_ctx=32768, rope_base=1000000.0, norm_eps=1e-6, bos=16000, eos=16001, n_special=384,
        arch="gemma4", window=512, per_layer=PerLayer(256, 20, 512, 5),
    ),
    # With the tower that bench/vision_families.py writes.
    "qwen3-vl-2b": Shape(
        name="Qwen3-VL-2B shape", n_layer=28, n_embd=2048, n_ff=6144, n_head=16, n_head_kv=8, head_dim=128,
        n_vocab=16384, n_ctx=32768, rope_base=5000000.0, norm_eps=1e-6, bos=16000, eos=16001, n_special=384,
        arch="qwen3vl", keys={"n_deepstack_layers": 3, "rope.dimension_sections": [24, 20, 20, 0]},
        specials=("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"),
    ),
}  # fmt: skip


def tensor_shapes(shape: Shape) -> Iterator[tuple[str, Dims]]:
    """(name, numpy shape) in the order of the file; the output is tied to the embedding where the architecture may."""
    yield "token_embd.weight", (shape.n_vocab, shape.n_embd)
    if shape.rope_factor is not None:
        yield "rope_freqs.weight", (shape.head_dim // 2,)
    if shape.per_layer is not None:
        yield from _per_layer_tables(shape, shape.per_layer)
    for i in range(shape.n_layer):
        own = _gemma4_layer(shape, shape.per_layer, i) if shape.per_layer else None
        for name, dims in own or (*_attention(shape), *_feed_forward(shape, i)):
            yield f"blk.{i}.{name}", dims
    yield "output_norm.weight", (shape.n_embd,)
    if not shape.tied:
        yield "output.weight", (shape.n_vocab, shape.n_embd)


def _attention(shape: Shape) -> Iterator[tuple[str, Dims]]:
    q, kv = shape.n_head * shape.head_dim, shape.n_head_kv * shape.head_dim
    yield "attn_norm.weight", (shape.n_embd,)
    if shape.latent is not None:
        yield from _latent_attention(shape, shape.latent)
        return
    for name, rows in (("attn_q", q), ("attn_k", kv), ("attn_v", kv)):
        yield f"{name}.weight", (rows, shape.n_embd)
        if shape.qkv_bias:
            yield f"{name}.bias", (rows,)
    yield "attn_output.weight", (shape.n_embd, q)
    if shape.arch in ("qwen3moe", "gemma3", "qwen3vl"):
        yield "attn_q_norm.weight", (shape.head_dim,)
        yield "attn_k_norm.weight", (shape.head_dim,)
    if shape.arch == "gpt-oss":
        yield "attn_output.bias", (shape.n_embd,)
        yield "attn_sinks.weight", (shape.n_head,)
    if shape.arch == "gemma3":
        yield "post_attention_norm.weight", (shape.n_embd,)


def _latent_attention(shape: Shape, latent: Latent) -> Iterator[tuple[str, Dims]]:
    n_own = shape.head_dim - latent.n_rope
    yield "attn_q_a.weight", (latent.n_narrow, shape.n_embd)
    yield "attn_q_a_norm.weight", (latent.n_narrow,)
    yield "attn_q_b.weight", (shape.n_head * shape.head_dim, latent.n_narrow)
    yield "attn_kv_a_mqa.weight", (latent.n_latent + latent.n_rope, shape.n_embd)
    yield "attn_kv_a_norm.weight", (latent.n_latent,)
    yield "attn_k_b.weight", (shape.n_head, latent.n_latent, n_own)
    yield "attn_v_b.weight", (shape.n_head, latent.value_dim, latent.n_latent)
    yield "attn_output.weight", (shape.n_embd, shape.n_head * latent.value_dim)


def _latent_feed_forward(shape: Shape, latent: Latent, layer: int) -> Iterator[tuple[str, Dims]]:
    def gated(suffix: str, hidden: int, *experts: int) -> Iterator[tuple[str, Dims]]:
        yield f"ffn_gate{suffix}.weight", (*experts, hidden, shape.n_embd)
        yield f"ffn_up{suffix}.weight", (*experts, hidden, shape.n_embd)
        yield f"ffn_down{suffix}.weight", (*experts, shape.n_embd, hidden)

    yield "ffn_norm.weight", (shape.n_embd,)
    if layer < latent.n_dense:
        yield from gated("", latent.n_ff_dense)
        return
    yield "ffn_gate_inp.weight", (shape.n_expert, shape.n_embd)
    yield from gated("_exps", shape.n_ff, shape.n_expert)
    yield from gated("_shexp", latent.n_shared * shape.n_ff)


def _feed_forward(shape: Shape, layer: int) -> Iterator[tuple[str, Dims]]:
    if shape.latent is not None:
        yield from _latent_feed_forward(shape, shape.latent, layer)
        return
    matrices = (("gate", (shape.n_ff, shape.n_embd)), ("up", (shape.n_ff, shape.n_embd)),
                ("down", (shape.n_embd, shape.n_ff)))  # fmt: skip
    biased = shape.arch == "gpt-oss"
    yield f"{'post_attention_norm' if biased else 'ffn_norm'}.weight", (shape.n_embd,)
    if shape.n_expert:
        yield "ffn_gate_inp.weight", (shape.n_expert, shape.n_embd)
        if biased:
            yield "ffn_gate_inp.bias", (shape.n_expert,)
    for name, dims in matrices:
        if not shape.n_expert:
            yield f"ffn_{name}.weight", dims
            continue
        yield f"ffn_{name}_exps.weight", (shape.n_expert, *dims)
        if biased:
            yield f"ffn_{name}_exps.bias", (shape.n_expert, dims[0])
    if shape.arch == "gemma3":
        yield "post_ffw_norm.weight", (shape.n_embd,)


def _per_layer_tables(shape: Shape, per_layer: PerLayer) -> Iterator[tuple[str, Dims]]:
    n_all = per_layer.n_embd * shape.n_layer
    yield "rope_freqs.weight", (per_layer.global_dim // 2,)
    yield "per_layer_token_embd.weight", (shape.n_vocab, n_all)
    yield "per_layer_model_proj.weight", (n_all, shape.n_embd)
    yield "per_layer_proj_norm.weight", (per_layer.n_embd,)


def _gemma4_layer(shape: Shape, per_layer: PerLayer, i: int) -> Iterator[tuple[str, Dims]]:
    n, shares = shape.n_embd, i >= shape.n_layer - per_layer.n_shared
    head_dim = per_layer.global_dim if per_layer.is_global(i) else shape.head_dim
    q, kv, n_ff = shape.n_head * head_dim, shape.n_head_kv * head_dim, shape.n_ff * (2 if shares else 1)
    for name in ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm", "post_norm"):
        yield f"{name}.weight", (n,)
    matrices = {"attn_q": (q, n), "attn_k": (kv, n), "attn_v": (kv, n), "attn_output": (n, q),
                "ffn_gate": (n_ff, n), "ffn_up": (n_ff, n), "ffn_down": (n, n_ff),
                "inp_gate": (per_layer.n_embd, n), "proj": (n, per_layer.n_embd)}  # fmt: skip
    vectors = {"attn_q_norm": (head_dim,), "attn_k_norm": (head_dim,), "layer_output_scale": (1,)}
    for name, dims in (matrices | vectors).items():
        if not (shares and name in ("attn_k", "attn_v", "attn_k_norm")):
            yield f"{name}.weight", dims
