"""DeepSeek's metadata: what does not fit is said when a file is loaded; the cache holds one row for each token."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ollama_engine import nn
from ollama_engine.convert import convert_model
from ollama_engine.errors import UnsupportedModelError
from ollama_engine.kvcache import LayerShape
from ollama_engine.ml.device.placement import BackendParams
from ollama_engine.ml.graph.backend import Backend
from ollama_engine.ml.graph.context import Context
from ollama_engine.ml.graph.storage import Storage
from ollama_engine.ml.weights.kernel_choice import ROWS_OF_F32_ALIKE
from ollama_engine.ml.weights.quantize import quantize_rows
from tests.models import families
from tests.models.variants import loaded, minimal, refuses

HUGE = 2**32 - 1
BAD: list[tuple[dict[str, Any], str]] = [
    ({"attention.kv_lora_rank": 0}, "no size is 0"),
    ({"attention.key_length_mla": 32}, "rope.dimension_count 32 is less than attention.key_length_mla 32"),
    ({"attention.q_lora_rank": HUGE}, "attn_q_a"),
    ({"expert_gating_func": 3}, "expert_gating_func 3 is 1 (softmax) or 2 (sigmoid)"),
    ({"expert_group_count": 3}, "expert_group_count 3 divides expert_count 8"),
    ({"expert_group_count": 4, "expert_group_used_count": 1}, "expert_used_count 3 experts"),
    ({"expert_group_count": HUGE}, "expert_group_count"),
    ({"expert_shared_count": 0}, "expert_shared_count 0 is at least 1"),
    ({"leading_dense_block_count": HUGE}, "ffn_gate.weight"),
    ({"attention.temperature_scale": 0.1}, "attention.temperature_length"),
    ({"block_count": 0}, "block_count 0"),
]


def test_bad_metadata(tmp_path: Path) -> None:
    refuses("deepseek2", tmp_path, BAD)


@pytest.mark.parametrize("flash_attention", ["on", "off"])
def test_the_cache_holds_one_row_for_each_token(flash_attention: str, tmp_path: Path) -> None:
    with loaded(minimal("deepseek2").file(tmp_path), kv_cache_type="f16", flash_attention=flash_attention) as parts:
        shapes = parts.model.cache_layers
        assert shapes == (LayerShape(kv_heads=1, key_dim=64, value_dim=32, latent=True),) * 3
        (nbytes,) = parts.cache.nbytes.values()
        assert nbytes == 3 * len(parts.cache.cells) * 64 * 2


@pytest.mark.parametrize("best", [1, 2])
def test_experts_are_of_the_best_groups(best: int) -> None:
    scores = np.random.default_rng(0).standard_normal((9, 12)).astype(np.float32)
    with Backend(BackendParams(threads=1, gpu_layers=0)) as backend, Context(backend) as ctx:
        out = nn.of_best_groups(ctx.from_floats(scores), groups=4, used=2, best=best)
        ctx.forward(out)
        ctx.alloc()
        ctx.compute()
        kept = out.numpy()
    sums = np.sort(scores.reshape(9, 4, 3))[:, :, -best:].sum(axis=2)
    chosen = np.argsort(sums)[:, -2:]
    mask = np.zeros((9, 4), dtype=bool)
    np.put_along_axis(mask, chosen, values=True, axis=1)
    mask = mask.repeat(3, axis=1)
    assert np.array_equal(kept[mask], scores[mask])
    assert (kept[~mask] < -1e29).all()


@pytest.mark.parametrize("dtype", ["f32", "f16", "q8_0", "q5_0", "q4_K"])
def test_maps_of_heads_give_a_token_the_same_bits_in_any_company(dtype: str) -> None:
    rng = np.random.default_rng(0)
    rows, x = rng.standard_normal((3 * 24, 256), dtype=np.float32), rng.standard_normal((300, 3, 256), dtype=np.float32)
    with Backend(BackendParams(threads=2, gpu_layers=0)) as backend, Storage(backend, 1) as storage:
        weight = storage.add("maps.weight", dtype, (256, 24, 3))
        storage.allocate(0)
        if dtype.startswith("q"):
            stored = np.empty(weight.nbytes, dtype=np.uint8)
            quantize_rows(dtype, rows, stored)
            weight.set_bytes(stored)
        else:
            weight.set(rows.reshape(3, 24, 256).astype(dtype.replace("f", "float")))
        maps = nn.HeadLinear("maps", 256, 24, 3).bind(nn.Scope({"maps.weight": weight}, None))

        def mapped(n: int) -> NDArray[np.float32]:
            with Context(backend) as ctx:
                out = maps(ctx.from_floats(x[:n]))
                ctx.forward(out)
                ctx.alloc()
                ctx.compute()
                return out.numpy().reshape(n, -1)

        whole = mapped(300)
        expected = np.einsum("hoi,nhi->nho", rows.reshape(3, 24, 256), x).reshape(300, -1)
        assert np.abs(whole - expected).max() < (2e-4 if dtype == "f32" else 0.5 if dtype == "f16" else 8)
        same = np.array_equal if ROWS_OF_F32_ALIKE or dtype.startswith("q") else partial(np.allclose, atol=0.1)
        for n in (1, 2, 7, 8, 33):
            assert same(mapped(n), whole[:n]), n


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scoring_func": "softmax"}, "scoring_func is 'softmax'"),
        ({"topk_method": "greedy"}, "topk_method is 'greedy'"),
        ({"rope_interleave": False}, "rope_interleave is False"),
        ({"attention_bias": True}, "attention_bias is True"),
        ({"mscale": 0.5}, "mscale 0.5 differs from mscale_all_dim 1.0"),
    ],
)
def test_what_gguf_has_no_key_for_is_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    case = families.case("deepseek-v3-bf16")
    golden = families.load(case)
    config = {**golden.config, **{name: value for name, value in changes.items() if name != "mscale"}}
    if "mscale" in changes:
        config["rope_parameters"] = {**config["rope_parameters"], **changes}
    source = families.write_folder(tmp_path / "source", config, case.weights(golden.shapes), case.dtype)
    with pytest.raises(UnsupportedModelError, match=message):
        convert_model(source, tmp_path / "made.gguf", "f32")


def test_mistral_small_4_is_converted_as_it_is_published(tmp_path: Path) -> None:
    """Its text part, in the class of Mistral Small 3 beside a part that reads images."""
    case = families.case("mistral4")
    golden = families.load(case)
    outer = {"architectures": ["Mistral3ForConditionalGeneration"], "model_type": "mistral3"}
    config = {**outer, "text_config": golden.config, "vision_config": {"model_type": "pixtral"}}
    weights = {
        name.replace("model.", "model.language_model.", 1): values
        for name, values in case.weights(golden.shapes).items()
    }
    weights["model.vision_tower.ln_pre.weight"] = np.ones(8, dtype=np.float32)
    source = families.write_folder(tmp_path / "source", config, weights, case.dtype)
    convert_model(source, tmp_path / "made.gguf", "f32")
    with case.engine(tmp_path / "made.gguf") as engine, case.engine(families.converted(case, tmp_path)) as plain:
        assert engine.info.architecture == "mistral4"
        assert np.array_equal(engine.logits(case.prompt), plain.logits(case.prompt))
