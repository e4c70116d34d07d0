"""Vision models become files of Ollama's dialect: every tensor by name, shape and number, every key of images.

Checkpoints have the names and shapes that transformers saves (see tests.models.families), and random numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as QuantType
from numpy.typing import NDArray

from ollama_engine.convert import convert_model, quantize_model
from ollama_engine.convert.registry import architectures
from ollama_engine.errors import ModelFormatError, UnsupportedModelError
from tests.convert.folders import write_json, write_safetensors
from tests.convert.vision_expected import RULES, expected_tensors
from tests.models import families

CASES = {
    "mllama": "mllama", "llama4": "llama4-bf16", "mistral3": "mistral3-bf16", "qwen25vl": "qwen25vl",
    "gemma3": "gemma3-vision-bf16", "gemma4": "gemma4-vision-bf16", "llava": "llava-bf16",
    "qwen3vl": "qwen3vl", "qwen3vlmoe": "qwen3vlmoe-bf16", "qwen35": "qwen35-vision-bf16",
    "qwen35moe": "qwen35moe-vision-bf16", "idefics3": "idefics3", "internvl-qwen2": "internvl-qwen2-bf16",
    "internvl-qwen3": "internvl-qwen3", "lfm2": "lfm2-vision", "glm4": "glm-ocr",
    "deepseek2-ocr": "deepseek2-ocr",
}  # fmt: skip
"""Architecture -> case of `families`."""
ONLY_IMAGES = ("deepseek2-ocr", "glm4", "lfm2", "qwen35", "qwen35moe")
"""Whose text part, some of it in another order, is compared by its logits (`tests/models/test_families.py`)."""


def rounded(values: NDArray[np.float32], dtype: str) -> NDArray[np.float32]:
    """As the checkpoint holds them; bf16 is cut off."""
    return (values.view(np.uint32) & 0xFFFF0000).view(np.float32) if dtype == "BF16" else values


def parts(architecture: str) -> tuple[dict[str, Any], dict[str, NDArray[np.float32]], str]:
    """(config, weights as they are stored, their type) of a case."""
    case = families.case(CASES[architecture])
    golden = families.load(case)
    weights = {name: rounded(values, case.dtype) for name, values in case.weights(golden.shapes).items()}
    return golden.config, weights, case.dtype


def source(
    architecture: str, path: Path, changes: Mapping[str, Any] | None = None, without: str = "", **vision: Any
) -> Path:
    """The folder of a case with another config: `changes` at the top, `vision` in vision_config; None removes one."""
    config, weights, dtype = parts(architecture)
    config = config | {"vision_config": _changed(config["vision_config"], vision)}
    weights = {name: values for name, values in weights.items() if not name.endswith(without or "\0")}
    return families.write_folder(path, _changed(config, changes or {}), weights, dtype)


def _changed(values: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    text = {k: v for k, v in changes.items() if k in values.get("text_config", {})}
    merged = {**values, **{k: v for k, v in changes.items() if k not in text}}
    if text:
        merged["text_config"] = _changed(values["text_config"], text)
    return {key: value for key, value in merged.items() if value is not None}


def test_every_vision_architecture_is_compared() -> None:
    vision = {architecture.name for architecture in architectures() if architecture.vision is not None}
    assert set(CASES) == set(RULES) == vision, "add a case here, and how names change to vision_expected.py"


@pytest.fixture(scope="module", params=CASES)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """(architecture, its file as f32)."""
    folder = Path(tmp_path_factory.mktemp(request.param))
    convert_model(source(request.param, folder / "source"), folder / "made.gguf", "f32")
    return request.param, folder / "made.gguf"


def test_every_tensor_has_its_name_shape_and_numbers(made: tuple[str, Path]) -> None:
    architecture, path = made
    config, weights, _ = parts(architecture)
    expected = expected_tensors(architecture, weights, config)
    tensors = {t.name: t for t in gguf.GGUFReader(path).tensors}
    if architecture in ONLY_IMAGES:
        tensors, expected = (
            {n: t for n, t in named.items() if n.startswith(("v.", "mm."))} for named in (tensors, expected)
        )
    assert set(tensors) - {"rope_freqs.weight"} == set(expected)
    for name, values in expected.items():
        assert tensors[name].shape.tolist() == list(values.shape[::-1]), name
        if "gate" in name and values.size == 1:  # tanh is rounded by whatever numpy was built with
            np.testing.assert_allclose(tensors[name].data, values, rtol=1e-6, err_msg=name)
        else:
            np.testing.assert_array_equal(tensors[name].data.reshape(values.shape), values, err_msg=name)


_QWEN3 = {
    "image_token_id": 14, "video_token_id": 15, "vision_start_token_id": 12, "vision_end_token_id": 13,
    "vision.block_count": 3, "vision.embedding_length": 32, "vision.feed_forward_length": 40,
    "vision.attention.head_count": 2, "vision.num_channels": 3, "vision.patch_size": 14,
    "vision.temporal_patch_size": 2, "vision.spatial_merge_size": 2, "vision.attention.layer_norm_epsilon": 1e-6,
    "vision.rope.freq_base": 1e4,
}  # fmt: skip
_QWEN3VL = {
    **_QWEN3, "mrope_sections": [6, 5, 5], "rope.dimension_sections": [6, 5, 5, 0], "rope.freq_base": 1e6,
    "n_deepstack_layers": 2, "vision.deepstack_visual_indexes": [0, 1],
}  # fmt: skip
_TOWER = {
    "vision.block_count": 2, "vision.embedding_length": 32, "vision.feed_forward_length": 48,
    "vision.attention.head_count": 2, "vision.attention.layer_norm_epsilon": 1e-6, "vision.image_size": 56,
    "vision.patch_size": 14, "vision.num_channels": 3, "vision.projector.scale_factor": 2, "image_token_id": 5,
}  # fmt: skip
KEYS: Mapping[str, Mapping[str, Any]] = {
    "qwen3vl": _QWEN3VL,
    "qwen3vlmoe": {**_QWEN3VL, "expert_count": 8, "expert_used_count": 3, "expert_feed_forward_length": 24,
                   "norm_top_k_prob": True},
    "qwen35": {**_QWEN3, "rope.dimension_sections": [2, 1, 1, 0], "rope.dimension_count": 8},
    "qwen35moe": {**_QWEN3, "rope.dimension_sections": [2, 1, 1, 0], "expert_shared_feed_forward_length": 48},
    "deepseek2-ocr": {
        "image_token_id": 5, "expert_count": 8, "expert_used_count": 3, "expert_feed_forward_length": 32,
        "expert_shared_count": 2, "leading_dense_block_count": 1, "expert_gating_func": 1, "vision.block_count": 2,
        "vision.embedding_length": 32, "vision.feed_forward_length": 48, "vision.attention.head_count": 2,
        "vision.attention.layer_norm_epsilon": 1e-5, "vision.image_size": 64, "vision.patch_size": 4,
        "vision.window_size": 3, "vision.sam.block_count": 2, "vision.sam.embedding_length": 32,
        "vision.sam.head_count": 2,
    },
    "glm4": {
        "image_token_id": 14, "image_start_token_id": 12, "image_end_token_id": 13,
        "rope.dimension_sections": [4, 6, 6, 0], "rope.dimension_count": 32, "vision.block_count": 2,
        "vision.embedding_length": 32, "vision.feed_forward_length": 40, "vision.attention.head_count": 2,
        "vision.num_channels": 3, "vision.patch_size": 14, "vision.temporal_patch_size": 2,
        "vision.spatial_merge_size": 2, "vision.attention.layer_norm_epsilon": 1e-5, "vision.rope.freq_base": 1e4,
        "vision.image_size": 336,
    },
    "mllama": {
        "block_count": 3, "vocab_size": 320, "attention.cross_attention_layers": [1], "image_token_id": 320,
        "vision.block_count": 2, "vision.global.block_count": 2, "vision.intermediate_layers_indices": [0, 1],
        "vision.embedding_length": 32, "vision.feed_forward_length": 48, "vision.attention.head_count": 4,
        "vision.attention.layer_norm_epsilon": 1e-5, "vision.image_size": 56, "vision.patch_size": 14,
        "vision.max_num_tiles": 4, "vision.num_channels": 3, "rope.freq_base": 5e5, "rope.dimension_count": 16,
    },
    "llama4": {
        "feed_forward_length": 96, "expert_feed_forward_length": 48, "expert_count": 4, "expert_used_count": 1,
        "interleave_moe_layer_step": 2, "use_qk_norm": True, "attention.chunk_size": 24, "no_rope_interval": 4,
        "attention.temperature_tuning": True, "attention.scale": 0.1, "attention.floor_scale": 12,
        "image_token_id": 200092, "image_start_token_id": 200080, "image_end_token_id": 200081,
        "vision.block_count": 2, "vision.embedding_length": 32, "vision.feed_forward_length": 128,
        "vision.attention.head_count": 4, "vision.image_size": 56, "vision.patch_size": 14, "vision.num_channels": 3,
        "vision.rope.freq_base": 1e4, "vision.layer_norm_epsilon": 1e-5, "vision.pixel_shuffle_ratio": 0.5,
    },
    "mistral3": {
        "attention.key_length": 32, "attention.value_length": 32, "rope.dimension_count": 32, "vocab_size": 320,
        "image_token_index": 10, "spatial_merge_size": 2, "mm.projector_bias": False,
        "mm.projector_hidden_act": "gelu", "vision.block_count": 2, "vision.embedding_length": 32,
        "vision.feed_forward_length": 48, "vision.attention.head_count": 2, "vision.attention.key_length": 16,
        "vision.image_size": 56, "vision.patch_size": 14, "vision.num_channels": 3, "vision.rope.freq_base": 1e4,
        "vision.attention.layer_norm_epsilon": 1e-5,
    },
    "qwen25vl": {
        "rope.mrope_section": [4, 6, 6], "rope.freq_base": 1e6, "image_token_id": 14, "video_token_id": 15,
        "vision_start_token_id": 12, "vision_end_token_id": 13, "vision.block_count": 2,
        "vision.embedding_length": 32, "vision.feed_forward_length": 40, "vision.attention.head_count": 2,
        "vision.num_channels": 3, "vision.patch_size": 14, "vision.temporal_patch_size": 2,
        "vision.spatial_merge_size": 2, "vision.window_size": 112, "vision.fullatt_block_indexes": [1],
        "vision.attention.layer_norm_epsilon": 1e-6, "vision.rope.freq_base": 1e4, "vision.tokens_per_second": 4,
    },
    "gemma3": {
        "vision.block_count": 2, "vision.embedding_length": 32, "vision.feed_forward_length": 48,
        "vision.attention.head_count": 4, "vision.attention.layer_norm_epsilon": 1e-6, "vision.image_size": 56,
        "vision.patch_size": 14, "vision.num_channels": 3, "mm.tokens_per_image": 4, "image_token_id": 316,
        "image_start_token_id": 314, "image_end_token_id": 315,
    },
    "gemma4": {
        "vision.block_count": 2, "vision.embedding_length": 32, "vision.feed_forward_length": 48,
        "vision.attention.head_count": 4, "vision.attention.layer_norm_epsilon": 1e-6, "vision.patch_size": 4,
        "vision.num_channels": 3, "vision.projector.scale_factor": 3, "vision.bidirectional": False,
        "image_start_token_id": 314, "image_end_token_id": 315,
    },
    "idefics3": {
        **_TOWER, "attention.key_length": 32, "rope.dimension_count": 32, "vocab_size": 320,
        "vision.activation": "gelu_tanh", "vision.image_splitting": True,
    },
    "internvl-qwen2": {**_TOWER, "rope.dimension_count": 32, "vision.activation": "gelu"},
    "internvl-qwen3": {**_TOWER, "rope.dimension_count": 32, "vision.activation": "gelu"},
    "lfm2": {
        **_TOWER, "attention.head_count_kv": [0, 2, 0, 0], "vision.activation": "gelu_tanh",
        "vision.max_pixels_tolerance": 2.0, "vision.image_splitting": True, "vision.use_thumbnail": True,
    },
    "llava": {
        "attention.key_length": 32, "rope.dimension_count": 32, "vocab_size": 320, "image_token_index": 5,
        "vision.block_count": 2, "vision.embedding_length": 32, "vision.feed_forward_length": 48,
        "vision.attention.head_count": 2, "vision.attention.layer_norm_epsilon": 1e-5, "vision.image_size": 56,
        "vision.patch_size": 14, "vision.num_channels": 3, "vision.activation": "quick_gelu",
        "vision.feature_layer": [1], "vision.keeps_class_token": False, "vision.image_aspect_ratio": "crop",
        "vision.image_resample": "bicubic", "mm.projector_hidden_act": "gelu",
    },
}  # fmt: skip


def keys_of(path: Path) -> dict[str, Any]:
    return {name: field.contents() for name, field in gguf.GGUFReader(path).fields.items()}


def test_keys(made: tuple[str, Path]) -> None:
    architecture, path = made
    keys = keys_of(path)
    assert keys["general.architecture"] == architecture
    for name, value in KEYS[architecture].items():
        key = f"{architecture}.{name}"
        assert keys[key] == (pytest.approx(value, rel=1e-6) if isinstance(value, float) else value), key
        assert type(keys[key]) is type(value), key
    images = {key for key in keys if ".vision." in key or ".mm." in key}
    assert images == {f"{architecture}.{name}" for name in KEYS[architecture] if name.startswith(("vision.", "mm."))}


def test_the_embedding_of_mllama_has_more_rows_than_the_output(tmp_path: Path) -> None:
    convert_model(source("mllama", tmp_path / "source"), tmp_path / "made.gguf")
    reader = gguf.GGUFReader(tmp_path / "made.gguf")
    tensors = {t.name: t for t in reader.tensors}
    assert tensors["token_embd.weight"].shape.tolist() == [64, 328]
    assert tensors["output.weight"].shape.tolist() == [64, 320]
    assert len(reader.fields["tokenizer.ggml.tokens"].contents()) == 328
    assert tensors["rope_freqs.weight"].shape.tolist() == [8]


# -- types, files ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("outtype", "images"), [("bf16", "BF16"), ("q8_0", "F16")])
def test_types(outtype: str, images: str, tmp_path: Path) -> None:
    """The part that reads images is not rounded to blocks; convolutions and tables of positions stay float32."""
    for architecture in CASES:
        path = tmp_path / f"{architecture}.gguf"
        convert_model(source(architecture, tmp_path / architecture), path, outtype)
        types = {t.name: (t.tensor_type, len(t.shape)) for t in gguf.GGUFReader(path).tensors}
        up = types.get("blk.0.ffn_up.weight") or types["blk.0.ffn_up_exps.weight"]
        assert up[0] in (QuantType[outtype.upper()], QuantType.F16)  # rows of some experts do not divide into blocks
        for name, (kind, n_dims) in types.items():
            table = (
                any(word in name for word in ("position", "patch_conv", "patch_embd", "pos_emb", ".pos_"))
                or n_dims == 4
            )
            if name.startswith(("v.", "mm.")):
                plain = n_dims == 1 or table or not name.endswith(".weight")
                assert kind == (QuantType.F32 if plain else QuantType[images]), name


def test_several_files_are_one_model(made: tuple[str, Path], tmp_path: Path) -> None:
    architecture, path = made
    folder = source(architecture, tmp_path / "many")
    (folder / "model.safetensors").unlink()
    _, weights, dtype = parts(architecture)
    places = {name: f"model-0000{1 + i % 3}-of-00003.safetensors" for i, name in enumerate(weights)}
    for file in set(places.values()):
        write_safetensors(folder / file, {n: w for n, w in weights.items() if places[n] == file}, dtype)
    write_json(folder / "model.safetensors.index.json", {"weight_map": places})
    convert_model(folder, tmp_path / "many.gguf", "f32")
    single, sharded = (gguf.GGUFReader(file).tensors for file in (path, tmp_path / "many.gguf"))
    assert [(t.name, t.data.tobytes()) for t in single] == [(t.name, t.data.tobytes()) for t in sharded]


def test_experts_one_by_one(tmp_path: Path) -> None:
    """As quantized releases of Llama 4 have them."""
    config, weights, dtype = parts("llama4")
    split: dict[str, NDArray[np.float32]] = {}
    for name, values in weights.items():
        stem = name.rpartition("experts.")[0] + "experts."
        for e, expert in enumerate(values if ".experts." in name else ()):
            halves = np.split(expert.T, 2) if "gate_up" in name else [expert.T]
            for part, half in zip(("gate", "up") if "gate_up" in name else ("down",), halves, strict=True):
                split[f"{stem}{e}.{part}_proj.weight"] = half
        if ".experts." not in name:
            split[name] = values
    convert_model(families.write_folder(tmp_path / "split", config, split, dtype), tmp_path / "split.gguf", "f32")
    convert_model(source("llama4", tmp_path / "fused"), tmp_path / "fused.gguf", "f32")
    separate, fused = (
        {t.name: t.data.tobytes() for t in gguf.GGUFReader(tmp_path / f"{name}.gguf").tensors}
        for name in ("split", "fused")
    )
    assert separate == fused


def test_experts_of_qwen3vl_as_they_are_published(tmp_path: Path) -> None:
    """[in, out], with gate and up side by side; transformers 5 writes them the other way round."""
    config, weights, dtype = parts("qwen3vlmoe")
    turned = {n: np.ascontiguousarray(w.swapaxes(1, 2)) if ".experts." in n else w for n, w in weights.items()}
    assert turned["model.language_model.layers.0.mlp.experts.gate_up_proj"].shape == (8, 64, 48)
    convert_model(families.write_folder(tmp_path / "old", config, turned, dtype), tmp_path / "old.gguf", "f32")
    convert_model(source("qwen3vlmoe", tmp_path / "new"), tmp_path / "new.gguf", "f32")
    old, new = (gguf.GGUFReader(tmp_path / f"{name}.gguf").tensors for name in ("old", "new"))
    assert [(t.name, t.data.tobytes()) for t in old] == [(t.name, t.data.tobytes()) for t in new]


@pytest.mark.parametrize("prefix", ["model.", "model.language_model."])
def test_prefixes_of_other_releases(prefix: str, tmp_path: Path) -> None:
    """transformers moved both parts below `model.` for some time, and the text of Qwen below `language_model.`."""
    architecture = "qwen25vl" if "language" in prefix else "gemma3"
    config, weights, dtype = parts(architecture)
    renamed = {}
    for name, values in weights.items():
        if prefix == "model.":
            new = prefix + name.replace("vision_tower.", "vision_tower.vision_model.")
        else:
            new = "model." + name if name.startswith("visual.") else name.replace("model.", prefix)
        renamed[new] = values
    convert_model(families.write_folder(tmp_path / "new", config, renamed, dtype), tmp_path / "new.gguf")
    convert_model(source(architecture, tmp_path / "old"), tmp_path / "old.gguf")
    new, old = (gguf.GGUFReader(tmp_path / f"{name}.gguf").tensors for name in ("new", "old"))
    assert [(t.name, t.data.tobytes()) for t in new] == [(t.name, t.data.tobytes()) for t in old]


def test_without_eyes_it_is_the_text_model(made: tuple[str, Path], tmp_path: Path) -> None:
    architecture, path = made
    convert_model(source(architecture, tmp_path / "source"), tmp_path / "text.gguf", "f32", vision=False)
    whole, text = gguf.GGUFReader(path), gguf.GGUFReader(tmp_path / "text.gguf")
    left = [(t.name, t.data.tobytes()) for t in whole.tensors if not t.name.startswith(("v.", "mm."))]
    assert [(t.name, t.data.tobytes()) for t in text.tensors] == left
    assert not any(".vision." in key for key in text.fields)


def test_quantizing_leaves_eyes_alone(tmp_path: Path) -> None:
    convert_model(source("mistral3", tmp_path / "source"), tmp_path / "made.gguf", "f16")
    quantize_model(tmp_path / "made.gguf", tmp_path / "small.gguf", "Q4_0")
    before, after = ({t.name: t for t in gguf.GGUFReader(tmp_path / f"{name}.gguf").tensors}
                     for name in ("made", "small"))  # fmt: skip
    assert after["blk.0.ffn_up.weight"].tensor_type == QuantType.Q4_0
    for name, tensor in before.items():
        if name.startswith(("v.", "mm.")):
            assert (after[name].tensor_type, after[name].data.tobytes()) == (tensor.tensor_type, tensor.data.tobytes())


# -- refused -----------------------------------------------------------------------------------------------------------

MISSING = {
    "mllama": ("vision_model.global_transformer.layers.1.gate_ffn", r"\[1\]"),
    "llama4": ("model.layers.1.feed_forward.experts.down_proj", r"\[4, 48, 64\]"),
    "mistral3": ("multi_modal_projector.patch_merger.merging_layer.weight", r"\[32, 128\]"),
    "qwen25vl": ("visual.blocks.1.attn.qkv.bias", r"\[96\]"),
    "qwen3vl": ("visual.deepstack_merger_list.1.norm.weight", r"\[128\]"),
    "gemma3": ("multi_modal_projector.mm_input_projection_weight", r"\[32, 64\]"),
    "idefics3": ("connector.modality_projection.proj.weight", r"\[64, 128\]"),
    "internvl-qwen2": ("vision_tower.encoder.layer.1.lambda_2", r"\[32\]"),
    "llava": ("multi_modal_projector.linear_1.weight", r"\[64, 32\]"),
}


@pytest.mark.parametrize("architecture", MISSING)
def test_a_missing_tensor_is_named_with_its_shape(architecture: str, tmp_path: Path) -> None:
    name, shape = MISSING[architecture]
    with pytest.raises(ModelFormatError, match=rf"missing from the checkpoint: .*{name} {shape}") as caught:
        convert_model(source(architecture, tmp_path / "source", without=name), tmp_path / "made.gguf")
    assert str(caught.value).endswith("(--no-vision)") == (architecture != "llama4")  # whose text part lacks it
    assert not (tmp_path / "made.gguf").exists()


REFUSED: list[tuple[str, dict[str, Any], dict[str, Any], type[Exception], str]] = [
    ("mllama", {}, {"hidden_act": "silu"}, UnsupportedModelError, "vision_config: hidden_act is 'silu'"),
    ("mllama", {}, {"image_size": [56, 28]}, ModelFormatError, "image_size is .*expected the side of a square"),
    ("mllama", {"cross_attention_layers": [7]}, {}, ModelFormatError, "numbers of layers below 3"),
    ("mllama", {"vision_config": None}, {}, ModelFormatError, "config.json has no vision_config"),
    ("llama4", {"no_rope_layers": [0, 1, 1, 1]}, {}, UnsupportedModelError, "no_rope_layers is .*no key for"),
    ("llama4", {"moe_layers": [0]}, {}, UnsupportedModelError, r"moe_layers is \[0\], .*supported: \[1, 3\]"),
    ("llama4", {"interleave_moe_layer_step": 0}, {}, ModelFormatError, "expected at least 1"),
    ("mistral3", {"vision_feature_layer": -2}, {}, UnsupportedModelError, "vision_feature_layer is -2"),
    ("mistral3", {}, {"rope_parameters": {"rope_type": "yarn"}}, UnsupportedModelError, "rope_type is 'yarn'"),
    ("qwen25vl", {"rope_parameters": {"mrope_section": [2, 3]}}, {}, ModelFormatError, "three numbers of pairs"),
    ("qwen25vl", {}, {"temporal_patch_size": 4}, UnsupportedModelError, "temporal_patch_size is 4"),
    ("qwen3vl", {"rope_parameters": {"mrope_section": [2, 3]}}, {}, ModelFormatError, "three numbers of pairs"),
    ("qwen3vl", {}, {"deepstack_visual_indexes": [0, 3]}, ModelFormatError, "numbers of layers below 3"),
    ("qwen35", {}, {"hidden_act": "silu"}, UnsupportedModelError, "vision_config: hidden_act is 'silu'"),
    ("gemma3", {}, {"patch_size": 57}, ModelFormatError, "no more than image_size 56"),
    ("idefics3", {"model_type": "mistral"}, {}, UnsupportedModelError, "model_type is 'mistral'"),
    ("internvl-qwen2", {}, {"norm_type": "rms_norm"}, UnsupportedModelError, "norm_type is 'rms_norm'"),
    ("internvl-qwen2", {"downsample_ratio": 0.4}, {}, ModelFormatError, "downsample_ratio is 0.4, expected 1 / n"),
    ("internvl-qwen2", {"model_type": "llama"}, {}, UnsupportedModelError, "which cannot be converted"),
    ("lfm2", {}, {"num_patches": 17}, ModelFormatError, "num_patches is 17, expected the patches of a square"),
    ("llava", {}, {"model_type": "dinov2"}, UnsupportedModelError, "model_type is 'dinov2'"),
    ("llava", {}, {"hidden_act": "silu"}, UnsupportedModelError, "hidden_act is 'silu'"),
    ("llava", {"model_type": "qwen2"}, {}, UnsupportedModelError, "model_type is 'qwen2'"),
    ("llava", {"vision_feature_layer": 3}, {}, ModelFormatError, "places in a list of 3 hidden states"),
    ("llava", {"vision_feature_select_strategy": "all"}, {}, UnsupportedModelError, "vision_feature_select_strategy"),
]  # fmt: skip


@pytest.mark.parametrize(("architecture", "changes", "vision", "kind", "message"), REFUSED)
def test_refusals(
    architecture: str,
    changes: dict[str, Any],
    vision: dict[str, Any],
    kind: type[Exception],
    message: str,
    tmp_path: Path,
) -> None:
    with pytest.raises(kind, match=message):
        convert_model(source(architecture, tmp_path / "source", changes, **vision), tmp_path / "made.gguf")


def test_configs_as_they_are_published(tmp_path: Path) -> None:
    """Qwen's text at the top and its older names; Ministral's sharper attention under both of its names."""
    config, weights, _ = parts("qwen25vl")
    text = config.pop("text_config")
    rope = {"type": "mrope", "mrope_section": [4, 6, 6]}
    flat = {**text, **config, "rope_parameters": None, "rope_theta": 1e6, "rope_scaling": rope}
    flat["vision_config"] = {**_changed(config["vision_config"], {"in_channels": None}), "in_chans": 3}
    convert_model(families.write_folder(tmp_path / "qwen", flat, weights, "F32"), tmp_path / "qwen.gguf")
    keys = keys_of(tmp_path / "qwen.gguf")
    assert (keys["qwen25vl.rope.mrope_section"], keys["qwen25vl.vision.num_channels"]) == ([4, 6, 6], 3)
    assert "qwen25vl.rope.scaling.type" not in keys
    rope = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 16.0, "original_max_position_embeddings": 16384,
            "llama_4_scaling_beta": 0.1, "mscale": 1.0, "mscale_all_dim": 1.0}  # fmt: skip
    convert_model(source("mistral3", tmp_path / "m", {"rope_parameters": rope}), tmp_path / "m.gguf")
    keys = keys_of(tmp_path / "m.gguf")
    for key, value in {"attention.temperature_scale": 0.1, "rope.scaling_beta": 0.1, "rope.scaling.factor": 16,
                       "rope.scaling.yarn_log_multiplier": 1.0}.items():  # fmt: skip
        assert keys[f"mistral3.{key}"] == pytest.approx(value)
