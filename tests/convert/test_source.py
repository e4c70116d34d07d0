"""Checkpoints: every element type, several files, and what is wrong with them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors import TensorSpec, serialize_file

from ollama_engine.convert.source.checkpoint import open_checkpoint
from ollama_engine.convert.source.elements import first_nan, to_float32
from ollama_engine.convert.source.folder import Config, ModelFolder
from ollama_engine.convert.source.safetensors import read_safetensors
from ollama_engine.convert.source.scaled import check_quantization, with_scales
from ollama_engine.errors import ModelFormatError, UnsupportedModelError
from tests.convert.folders import write_json, write_safetensors

WEIGHTS = {
    "a": np.arange(24, dtype=np.float32).reshape(2, 3, 4) / 8 - 1,
    "b": np.linspace(-2, 2, 7, dtype=np.float32),
    "scalar": np.array(1.5, np.float32),
    "empty": np.zeros((0, 3), np.float32),
}


def write_raw(path: Path, tensors: dict[str, tuple[str, NDArray[Any]]]) -> Path:
    """Tensors of any type: (name of the safetensors package, storage)."""
    specs = {name: TensorSpec(dtype=dtype, shape=data.shape, data_ptr=data.ctypes.data, data_len=data.nbytes)
             for name, (dtype, data) in tensors.items()}  # fmt: skip
    serialize_file(specs, str(path))
    return path


# -- element types -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
def test_floats_come_back(dtype: str, tmp_path: Path) -> None:
    write_safetensors(tmp_path / "x.safetensors", WEIGHTS, dtype)
    tensors = read_safetensors(str(tmp_path / "x.safetensors"))
    assert {name: t.shape for name, t in tensors.items()} == {name: v.shape for name, v in WEIGHTS.items()}
    for name, values in WEIGHTS.items():
        read = to_float32(tensors[name].read(), tensors[name].dtype)
        np.testing.assert_allclose(read, values, rtol=2**-7 if dtype == "BF16" else 2**-10)
    np.testing.assert_array_equal(tensors["a"].read(1, 2), tensors["a"].read()[1:2])


FLOAT8 = {
    "F8_E4M3": {0x00: 0.0, 0x01: 2**-9, 0x08: 2**-6, 0x38: 1.0, 0x7E: 448.0, 0x80: -0.0, 0xB8: -1.0, 0x7F: np.nan},
    "F8_E5M2": {0x01: 2**-16, 0x3C: 1.0, 0x7B: 57344.0, 0x7C: np.inf, 0xFC: -np.inf, 0x7D: np.nan, 0xC0: -2.0},
    "F8_E8M0": {0x7F: 1.0, 0x80: 2.0, 0x7E: 0.5, 0xFF: np.nan},
}


@pytest.mark.parametrize("dtype", FLOAT8)
def test_8_bit_floats(dtype: str) -> None:
    codes = np.array(list(FLOAT8[dtype]), np.uint8)
    np.testing.assert_array_equal(to_float32(codes, dtype), np.array(list(FLOAT8[dtype].values()), np.float32))


@pytest.mark.parametrize("dtype", ["F8_E4M3", "F8_E5M2"])
def test_8_bit_floats_are_those_of_torch(dtype: str) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed: pip install ollama_engine[reference]")
    kind = {"F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2}[dtype]
    codes = np.arange(256, dtype=np.uint8)
    np.testing.assert_array_equal(to_float32(codes, dtype), torch.from_numpy(codes).view(kind).float().numpy())


@pytest.mark.parametrize("dtype", ["F32", "F64", "F16", "BF16", "F8_E4M3", "F8_E5M2"])
def test_the_first_nan_is_found(dtype: str) -> None:
    kinds = {"F32": np.float32, "F64": np.float64, "F16": np.float16, "BF16": np.uint16}
    good = np.zeros((3, 4), kinds.get(dtype, np.uint8))
    assert first_nan(good, dtype) is None
    good[1, 2] = {"BF16": 0x7F80, "F8_E4M3": 0x7E, "F8_E5M2": 0x7C}.get(dtype, np.inf)
    assert first_nan(good, dtype) is None
    good[2, 1] = {"BF16": 0xFFC0, "F8_E4M3": 0xFF, "F8_E5M2": 0x7F}.get(dtype, np.nan)
    assert first_nan(good, dtype) == 9


def test_whole_numbers_are_no_weights() -> None:
    with pytest.raises(UnsupportedModelError, match="elements of type I32 are no weights"):
        to_float32(np.zeros(3, np.int32), "I32")


# -- scales ------------------------------------------------------------------------------------------------------------

SCALES = {
    "one": ((), "_scale"),
    "one-in-a-list": ((1,), "_scale"),
    "rows": ((6,), "_scale"),
    "rows-as-columns": ((6, 1), "_scale"),
    "blocks": ((2, 3), "_scale_inv"),
}


@pytest.mark.parametrize("name", SCALES)
def test_scales_are_multiplied_in(name: str, tmp_path: Path) -> None:
    shape, suffix = SCALES[name]
    rng = np.random.default_rng(2)
    codes = rng.integers(0, 0x7F, (6, 10), np.uint8)
    scale = np.asarray(rng.random(shape), np.float32)
    tensors = {
        "x.weight": ("float8_e4m3fn", codes),
        f"x.weight{suffix}": ("float32", scale),
        "x.input_scale": ("float32", np.ones(1, np.float32)),
        "y.weight": ("float32", np.ones((2, 2), np.float32)),
    }
    path = write_raw(tmp_path / "model.safetensors", tensors)
    config = Config({"quantization_config": {"quant_method": "fp8", "weight_block_size": [4, 4]}}, "config.json")
    scaled = with_scales(read_safetensors(str(path)), config)
    assert set(scaled) == {"x.weight", "y.weight"}
    whole = np.kron(scale, np.ones((4, 4)))[:6, :10] if name == "blocks" else scale.reshape(-1, 1)
    expected = (to_float32(codes, "F8_E4M3") * whole).astype(np.float32)
    tensor = scaled["x.weight"]
    np.testing.assert_allclose(tensor.read(), expected, rtol=1e-6)
    np.testing.assert_array_equal(tensor.read(3, 6), np.asarray(tensor.read())[3:6])


def test_a_scale_that_does_not_fit(tmp_path: Path) -> None:
    tensors = {"x.weight": ("float8_e4m3fn", np.zeros((6, 10), np.uint8)),
               "x.weight_scale_inv": ("float32", np.ones((3, 3), np.float32))}  # fmt: skip
    path = write_raw(tmp_path / "model.safetensors", tensors)
    config = Config({"quantization_config": {"weight_block_size": [4, 4]}}, "config.json")
    with pytest.raises(ModelFormatError, match=r"x.weight_scale_inv F32 \[3, 3\] is no scale for x.weight F8_E4M3"):
        with_scales(read_safetensors(str(path)), config)


def test_packed_weights_are_refused_by_name() -> None:
    check_quantization(Config({"quantization_config": {"quant_method": "fp8"}}, "config.json"))
    with pytest.raises(UnsupportedModelError, match="quantized by gptq, which is not read here"):
        check_quantization(Config({"quantization_config": {"quant_method": "gptq"}}, "config.json"))


# -- files -------------------------------------------------------------------------------------------------------------


def split(folder: Path, places: dict[str, str], **index: Any) -> None:
    for file in set(places.values()):
        write_safetensors(folder / file, {name: WEIGHTS[name] for name, place in places.items() if place == file})
    write_json(folder / "model.safetensors.index.json", {"weight_map": places, **index})


def test_several_files_are_one_checkpoint(tmp_path: Path) -> None:
    split(tmp_path, {"a": "m-1.safetensors", "b": "m-2.safetensors", "scalar": "m-2.safetensors"})
    found = open_checkpoint(ModelFolder(tmp_path))
    np.testing.assert_array_equal(found["a"].read(), WEIGHTS["a"])
    assert found["b"].home == str(tmp_path / "m-2.safetensors")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    split(tmp_path, {"a": "m-1.safetensors", "b": "m-2.safetensors", "scalar": "m-3.safetensors"})
    (tmp_path / "m-2.safetensors").unlink()
    with pytest.raises(ModelFormatError, match=r"of 3 files that model.safetensors.index.json names, .*: m-2.safetens"):
        open_checkpoint(ModelFolder(tmp_path))


def test_an_index_that_lies(tmp_path: Path) -> None:
    split(tmp_path, {"a": "m-1.safetensors"}, weight_map={"a": "m-1.safetensors", "gone": "m-1.safetensors"})
    with pytest.raises(ModelFormatError, match=r"m-1.safetensors lacks gone, which .* places there"):
        open_checkpoint(ModelFolder(tmp_path))
    write_json(tmp_path / "model.safetensors.index.json", {"weight_map": {"a": "../../etc/passwd"}})
    with pytest.raises(ModelFormatError, match="is no plain file name"):
        open_checkpoint(ModelFolder(tmp_path))


def test_a_tensor_that_is_there_twice(tmp_path: Path) -> None:
    for file in ("model-a.safetensors", "model-b.safetensors"):
        write_safetensors(tmp_path / file, {"a": WEIGHTS["a"]})
    with pytest.raises(ModelFormatError, match=r"'a' is in model-a.safetensors and in model-b.safetensors"):
        open_checkpoint(ModelFolder(tmp_path))


def test_a_folder_without_weights(tmp_path: Path) -> None:
    with pytest.raises(ModelFormatError, match=r"neither .safetensors files nor pytorch_model.bin"):
        open_checkpoint(ModelFolder(tmp_path))


def header(**entries: Any) -> bytes:
    text = json.dumps(entries).encode()
    return len(text).to_bytes(8, "little") + text


ENTRY = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
BROKEN = {
    "empty": (b"", "not a safetensors file"),
    "short": (b"\x10" + bytes(7) + b"{}", "a header of 16"),
    "no-json": ((3).to_bytes(8, "little") + b"{{{", "the header is not JSON"),
    "list": ((2).to_bytes(8, "little") + b"[]", "the header is a JSON list"),
    "no-dtype": (header(x={"shape": [], "data_offsets": [0, 4]}) + bytes(4), "'x' has a broken header entry"),
    "negative": (header(x={**ENTRY, "shape": [-2]}) + bytes(8), "'x' has a broken header entry"),
    "text-offset": (header(x={**ENTRY, "data_offsets": ["0", 8]}) + bytes(8), "'x' has a broken header entry"),
    "unknown-type": (header(x={**ENTRY, "dtype": "Q9"}) + bytes(8), "elements of type 'Q9'; supported: F64"),
    "too-long": (header(x=ENTRY) + bytes(7), r"'x' F32 \[2\] takes 8 bytes, but the header gives it 0 to 8 of 7 bytes"),
    "wrong-size": (header(x={**ENTRY, "shape": [3]}) + bytes(12), r"takes 12 bytes, but the header gives it 0 to 8"),
    "huge": (header(x={**ENTRY, "shape": [2**40, 2**40]}) + bytes(8), "takes 4835703278458516698824704 bytes"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_files_are_refused(name: str, tmp_path: Path) -> None:
    data, message = BROKEN[name]
    (tmp_path / "x.safetensors").write_bytes(data)
    with pytest.raises(ModelFormatError, match=message):
        read_safetensors(str(tmp_path / "x.safetensors"))


def test_a_file_that_became_shorter(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    write_safetensors(path, {"a": WEIGHTS["a"]})
    tensor = read_safetensors(str(path))["a"]
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(ModelFormatError, match="ends inside of tensor a"):
        tensor.read()


# -- pytorch_model.bin -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("archive", [True, False])
def test_older_files_are_read_with_torch(archive: bool, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed: pip install ollama_engine[reference]")
    state = {"a": torch.arange(6.0).reshape(2, 3), "t": torch.arange(6.0).reshape(2, 3).T,
             "h": torch.tensor([1.5, -2.0], dtype=torch.bfloat16), "s": torch.tensor(3.0)}  # fmt: skip
    torch.save(state, tmp_path / "pytorch_model.bin", _use_new_zipfile_serialization=archive)
    tensors = open_checkpoint(ModelFolder(tmp_path))
    for name, values in state.items():
        read = to_float32(np.asarray(tensors[name].read()), tensors[name].dtype)
        np.testing.assert_array_equal(read, values.float().numpy())
    np.testing.assert_array_equal(tensors["t"].read(1, 3), state["t"][1:3].numpy())


def test_older_files_cannot_run_code(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed: pip install ollama_engine[reference]")
    torch.save({"a": Path("x")}, tmp_path / "pytorch_model.bin")
    with pytest.raises(ModelFormatError, match="no checkpoint of tensors only"):
        open_checkpoint(ModelFolder(tmp_path))
