"""gpt-oss as it is published: experts in MXFP4 keep every bit, and compute as the numbers they stand for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from ollama_engine.convert import convert_model
from ollama_engine.errors import ModelFormatError, UnsupportedModelError
from tests.models import families
from tests.models.cases import difference

CODES = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
"""The number of each 4-bit code (OCP MX specification, 2023)."""
CASE = families.case("gpt-oss")
EXPERTS = "model.layers.{}.mlp.experts.{}_proj"


def packed(rng: np.random.Generator, *shape: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8], NDArray[np.float32]]:
    """Random (blocks, scales, their numbers): bytes hold two neighbours, the first in the low half."""
    codes = rng.integers(0, 16, shape)
    blocks = (codes[..., 0::2] | (codes[..., 1::2] << 4)).astype(np.uint8)
    scales = rng.integers(120, 124, (*shape[:-1], shape[-1] // 32)).astype(np.uint8)
    numbers = CODES[codes] * np.exp2(np.repeat(scales.astype(np.float32) - 127, 32, axis=-1))
    return blocks.reshape(*scales.shape, 16), scales, numbers.astype(np.float32)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, dict[str, NDArray[np.float32]]]:
    """(with MXFP4 experts, the same as plain matrices, the numbers of each matrix as [experts, out, in])."""
    root = Path(tmp_path_factory.mktemp("gpt-oss"))
    golden = families.load(CASE)
    weights = CASE.weights(golden.shapes)
    plain = families.write_folder(root / "plain", golden.config, weights, "F32")
    published = families.write_folder(root / "published", golden.config, weights, "F32")
    stored = {"plain": load_file(plain / "model.safetensors"), "published": load_file(published / "model.safetensors")}
    rng, numbers = np.random.default_rng(1), {}
    for layer in range(golden.config["num_hidden_layers"]):
        for part in ("gate_up", "down"):
            name = EXPERTS.format(layer, part)
            experts, into, out = stored["plain"][name].shape
            blocks, scales, numbers[name] = packed(rng, experts, out, into)
            stored["plain"][name] = np.ascontiguousarray(numbers[name].swapaxes(1, 2))
            del stored["published"][name]
            stored["published"] |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
    for path in (plain, published):
        save_file(stored[path.name], path / "model.safetensors")
    return published, plain, numbers


@pytest.mark.parametrize("outtype", ["f32", "q8_0"])
def test_mxfp4_is_passed_through(folders: Any, outtype: str, tmp_path: Path) -> None:
    published, _, numbers = folders
    convert_model(published, tmp_path / "made.gguf", outtype)
    tensors = {t.name: t for t in gguf.GGUFReader(tmp_path / "made.gguf").tensors}
    for layer in range(3):
        up = numbers[EXPERTS.format(layer, "gate_up")]
        expected = {"gate": up[:, 0::2], "up": up[:, 1::2], "down": numbers[EXPERTS.format(layer, "down")]}
        for name, values in expected.items():
            tensor = tensors[f"blk.{layer}.ffn_{name}_exps.weight"]
            assert tensor.tensor_type == gguf.GGMLQuantizationType.MXFP4
            np.testing.assert_array_equal(gguf.quants.dequantize(tensor.data, tensor.tensor_type), values)


def test_mxfp4_experts_compute_what_their_numbers_do(folders: Any, tmp_path: Path) -> None:
    """ggml rounds activations to 8 bits for them, so the two are near, not equal."""
    logits = []
    for source in folders[:2]:
        convert_model(source, tmp_path / f"{source.name}.gguf", "f32")
        with CASE.engine(tmp_path / f"{source.name}.gguf") as engine:
            logits.append(engine.logits(CASE.prompt))
    assert np.median(np.abs(logits[0] - logits[1])) <= 0.02 * logits[1].std()
    assert difference(logits[0], logits[1]) <= 1


def test_blocks_and_scales_must_fit(folders: Any, tmp_path: Path) -> None:
    weights = load_file(folders[0] / "model.safetensors")
    name = EXPERTS.format(1, "down") + "_scales"
    weights[name] = weights[name][:, :-1].copy()
    source = families.write_folder(tmp_path / "source", families.load(CASE).config, {}, "F32")
    save_file(weights, source / "model.safetensors")
    with pytest.raises(ModelFormatError, match=r"down_proj_blocks .* and .*down_proj_scales .* are no MXFP4"):
        convert_model(source, tmp_path / "made.gguf")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"swiglu_limit": 9.0}, r"swiglu_limit is 9\.0"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 8.0, "rope_theta": 1e4}}, "truncate is on"),
    ],
)
def test_what_gguf_cannot_say_is_refused(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    golden = families.load(CASE)
    source = families.write_folder(tmp_path / "source", {**golden.config, **change}, CASE.weights(golden.shapes), "F32")
    with pytest.raises(UnsupportedModelError, match=message):
        convert_model(source, tmp_path / "made.gguf")
