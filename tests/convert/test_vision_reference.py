"""Converted vision encoders, computed by numpy from the numbers of the file, are those of transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from numpy.typing import NDArray

from ollama_engine.convert import convert_model
from tests.convert.test_vision import CASES
from tests.models import families
from tests.models.family_reference import FamilyReference
from tests.models.reference import import_reference

torch, _ = import_reference()

pytestmark = pytest.mark.reference

Array = NDArray[np.float32]
CLOSE = {"rtol": 1e-4, "atol": 2e-5}


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """architecture -> (model of transformers, tensors of its file in numpy's order); each is made once."""
    known: dict[str, tuple[Any, dict[str, Array]]] = {}

    def pair(architecture: str) -> tuple[Any, dict[str, Array]]:
        if architecture not in known:
            folder = Path(tmp_path_factory.mktemp(architecture))
            reference = FamilyReference(families.case(CASES[architecture]), folder / "source")
            convert_model(reference.folder, folder / "made.gguf", "f32")
            tensors = {t.name: t.data.reshape(t.shape[::-1]) for t in gguf.GGUFReader(folder / "made.gguf").tensors}
            known[architecture] = reference.model, tensors
        return known[architecture]

    return pair


def numbers(*shape: int, seed: int = 1) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def first_answer(module: Any, *inputs: Array, **more: Any) -> Array:
    """A module's answer to a batch of one, or the first of its answers."""
    with torch.inference_mode():
        out = module(*(torch.from_numpy(x) for x in inputs), **more)
    return np.asarray((out[0] if isinstance(out, tuple) else out).numpy())


# -- arithmetic --------------------------------------------------------------------------------------------------------


def linear(x: Array, tensors: dict[str, Array], name: str) -> Array:
    return x @ tensors[f"{name}.weight"].T + tensors.get(f"{name}.bias", np.float32(0))


def rms(x: Array, weight: Array, eps: float) -> Array:
    return weight * x / np.sqrt((x * x).mean(-1, keepdims=True) + eps)


def layer_norm(x: Array, tensors: dict[str, Array], name: str, eps: float = 1e-5) -> Array:
    centred = x - x.mean(-1, keepdims=True)
    scaled = centred / np.sqrt((centred * centred).mean(-1, keepdims=True) + eps)
    return scaled * tensors[f"{name}.weight"] + tensors[f"{name}.bias"]


def gelu(x: Array) -> Array:
    return np.asarray(torch.nn.functional.gelu(torch.from_numpy(np.ascontiguousarray(x))).numpy())


def silu(x: Array) -> Array:
    return x / (1 + np.exp(-x))


def heads(x: Array, n: int) -> Array:
    """[length, n * size] -> [n, length, size]."""
    return x.reshape(len(x), n, -1).swapaxes(0, 1)


def attend(q: Array, k: Array, v: Array) -> Array:
    """[heads, length, size] each, perhaps fewer heads of keys -> [length, heads * size]."""
    k, v = (np.repeat(x, len(q) // len(x), axis=0) for x in (k, v))
    scores = q @ k.swapaxes(1, 2) / np.sqrt(q.shape[-1])
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    out = weights / weights.sum(-1, keepdims=True) @ v
    return out.swapaxes(0, 1).reshape(out.shape[1], -1)


# -- mllama ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["blk", "global.blk"])
def test_mllama_encoder_layers_with_their_gates(place: str, pairs: Any) -> None:
    """Queries and keys have another order of rows, gates are what they multiply with."""
    model, tensors = pairs("mllama")
    block = f"v.{place}.1."
    x = numbers(1, 11, 32)
    h = layer_norm(x[0], tensors, block + "attn_norm")
    q, k, v = (heads(linear(h, tensors, f"{block}attn_{name}"), 4) for name in "qkv")
    gates = [tensors.get(f"{block}{name}_gate", np.ones(1, np.float32)) for name in ("attn", "ffn")]
    y = x[0] + gates[0] * linear(attend(q, k, v), tensors, block + "attn_output")
    hidden = gelu(linear(layer_norm(y, tensors, block + "ffn_norm"), tensors, block + "ffn_up"))
    y = y + gates[1] * linear(hidden, tensors, block + "ffn_down")
    encoder = model.model.vision_model
    layers = (encoder.transformer if place == "blk" else encoder.global_transformer).layers
    np.testing.assert_allclose(y, first_answer(layers[1], x)[0], **CLOSE)


def test_mllama_tables_of_positions(pairs: Any) -> None:
    model, tensors = pairs("mllama")
    tiles, ratio = numbers(1, 4, 17, 32), 6
    embedding = model.model.vision_model.gated_positional_embedding
    flat = tensors["v.position_embd.gate"] * tensors["v.position_embd.weight"]
    table = tensors["v.tile_position_embd.weight"][ratio].reshape(4, 17, 32)
    expected = tiles[0] + flat + tensors["v.tile_position_embd.gate"] * table
    answer = first_answer(embedding, tiles, aspect_ratio_ids=torch.tensor([[ratio]]))
    np.testing.assert_allclose(expected, answer[0], **CLOSE)
    for name in ("pre_tile", "post_tile"):
        embedding = getattr(model.model.vision_model, f"{name}_positional_embedding")
        row = tensors[f"v.{name}_position_embd.weight"][ratio].reshape(4, 1, 32)
        expected = tiles[0] + tensors[f"v.{name}_position_embd.gate"] * row
        answer = first_answer(embedding, tiles, aspect_ratio_ids=torch.tensor([[ratio]]))
        np.testing.assert_allclose(expected, answer[0], **CLOSE)


def test_mllama_layers_that_look_at_images(pairs: Any) -> None:
    """Rows of q and k are as published, or q_norm and k_norm would weigh other numbers."""
    model, tensors = pairs("mllama")
    layer, block = model.model.language_model.layers[1], "blk.1."
    x, image = numbers(1, 5, 64), numbers(1, 9, 64, seed=2)
    h = rms(x[0], tensors[block + "attn_norm.weight"], 1e-5)
    q = heads(linear(h, tensors, block + "cross_attn_q_proj"), 4)
    k, v = (heads(linear(image[0], tensors, f"{block}cross_attn_{name}_proj"), 2) for name in "kv")
    q, k = (rms(x, tensors[f"{block}cross_attn_{name}_norm.weight"], 1e-5) for x, name in ((q, "q"), (k, "k")))
    attended = linear(attend(q, k, v), tensors, block + "cross_attn_o_proj")
    y = x[0] + np.tanh(tensors[block + "cross_attn_attn_gate"]) * attended
    h = rms(y, tensors[block + "ffn_norm.weight"], 1e-5)
    hidden = silu(linear(h, tensors, block + "ffn_gate")) * linear(h, tensors, block + "ffn_up")
    y = y + np.tanh(tensors[block + "cross_attn_mlp_gate"]) * linear(hidden, tensors, block + "ffn_down")
    more = {"cross_attention_states": torch.from_numpy(image), "cross_attention_mask": None, "attention_mask": None,
            "full_text_row_masked_out_mask": None}  # fmt: skip
    np.testing.assert_allclose(y, first_answer(layer, x, **more).reshape(5, 64), **CLOSE)


# -- the others --------------------------------------------------------------------------------------------------------


def test_llama4_experts(pairs: Any) -> None:
    """The weight of the one chosen expert is the sigmoid of its score, and multiplies its input."""
    model, tensors = pairs("llama4")
    mlp, block = model.language_model.model.layers[1].feed_forward, "blk.1.ffn_"
    x = numbers(1, 7, 64)
    y = np.zeros_like(x[0])
    for i, row in enumerate(x[0]):
        scores = tensors[block + "gate_inp.weight"] @ row
        e = int(scores.argmax())
        h = row / (1 + np.exp(-scores[e]))
        gate, up, down = (tensors[f"{block}{name}_exps.weight"][e] for name in ("gate", "up", "down"))
        y[i] = down @ (silu(gate @ h) * (up @ h))
    shared = silu(linear(x[0], tensors, block + "gate_shexp")) * linear(x[0], tensors, block + "up_shexp")
    np.testing.assert_allclose(
        y + linear(shared, tensors, block + "down_shexp"), first_answer(mlp, x).reshape(7, 64), **CLOSE
    )


def test_qwen25vl_patches_are_the_sum_of_two_frames(pairs: Any) -> None:
    model, tensors = pairs("qwen25vl")
    patches = numbers(6, 3, 2, 14, 14)
    frames = [np.einsum("nchw,dchw->nd", patches[:, :, t], tensors[f"v.patch_embd_{t}.weight"]) for t in range(2)]
    found = first_answer(model.model.visual.patch_embed, patches.reshape(6, -1))
    np.testing.assert_allclose(frames[0] + frames[1], found, **CLOSE)


def test_qwen25vl_queries_keys_and_values(pairs: Any) -> None:
    model, tensors = pairs("qwen25vl")
    x = numbers(6, 32)
    parts = [linear(x, tensors, f"v.blk.1.attn_{name}") for name in "qkv"]
    found = first_answer(model.model.visual.blocks[1].attn.qkv, x)
    np.testing.assert_allclose(np.concatenate(parts, axis=-1), found, **CLOSE)


def test_mistral3_encoder_rotates_halves(pairs: Any) -> None:
    """Rows of the encoder are as published: a head's first half turns with its second."""
    model, tensors = pairs("mistral3")
    attention, x, n = model.model.vision_tower.transformer.layers[0].attention, numbers(1, 6, 32), 2
    angles = numbers(6, 8, seed=3)
    cos, sin = (np.concatenate([f(angles)] * 2, axis=-1) for f in (np.cos, np.sin))
    q, k, v = (heads(linear(x[0], tensors, f"v.blk.0.attn_{name}"), n) for name in "qkv")
    q, k = (part * cos + np.concatenate([-part[..., 8:], part[..., :8]], axis=-1) * sin for part in (q, k))
    expected = linear(attend(q, k, v), tensors, "v.blk.0.attn_output")
    turned = (torch.from_numpy(cos)[None], torch.from_numpy(sin)[None])
    np.testing.assert_allclose(expected, first_answer(attention, x, position_embeddings=turned)[0], **CLOSE)


def test_gemma3_projector(pairs: Any) -> None:
    """4 x 4 patches become 2 x 2 by means; the norm has its 1 already, the matrix multiplies from the right."""
    model, tensors = pairs("gemma3")
    patches = numbers(1, 16, 32)
    pooled = patches[0].reshape(2, 2, 2, 2, 32).mean(axis=(1, 3)).reshape(4, 32)
    normed = rms(pooled, tensors["mm.mm_soft_emb_norm.weight"], 1e-6)
    found = first_answer(model.model.multi_modal_projector, patches)
    np.testing.assert_allclose(normed @ tensors["mm.mm_input_projection.weight"], found[0], **CLOSE)
