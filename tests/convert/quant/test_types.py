"""Every tensor gets the type that llama-quantize gives it, by goldens that it made."""

from __future__ import annotations

import logging

import pytest

from ollama_engine.convert.quant.layout import target_types
from ollama_engine.convert.quant.model import find_preset
from ollama_engine.convert.quant.presets import ALIASES, PRESETS
from ollama_engine.errors import ConfigError
from ollama_engine.ml.gguf.gguf_file import TensorInfo
from tests.convert.quant import golden
from tests.convert.quant.shells import SHELLS, Shell


@pytest.mark.parametrize("shell", SHELLS, ids=lambda shell: shell.name)
def test_types_are_those_of_llama_quantize(shell: Shell) -> None:
    expected = golden.load()["types"]
    compared = 0
    for preset in PRESETS.values():
        if f"{shell.name} {preset.name}" in expected:
            types = target_types(shell.tensors(), preset, shell.facts, has_imatrix=False)
            assert golden.summary(types) == expected[f"{shell.name} {preset.name}"], preset.name
            compared += 1
    assert compared >= 19


def test_rows_that_do_not_fit_are_said_once(caplog: pytest.LogCaptureFixture) -> None:
    shell = Shell("odd", n_layer=2, lengths={"ffn_down": 96, "attn_v": 40})
    with caplog.at_level(logging.WARNING, "ollama_engine"):
        types = target_types(shell.tensors(), PRESETS["Q5_K_S"], shell.facts, has_imatrix=False)
    assert types["blk.0.ffn_down.weight"] == "q5_1"
    assert types["blk.0.attn_v.weight"] == "f16"
    assert len(caplog.records) == 1
    assert "4 of 21 tensors" in caplog.text
    assert "blk.0.attn_v.weight with rows of 40 becomes f16" in caplog.text


def test_what_must_stay_stays() -> None:
    names = ("token_types.weight", "position_embd.weight", "blk.0.ssm_conv1d.weight", "v.position_embd.weight",
             "blk.0.attn_q.bias", "blk.0.ffn_gate_inp.weight", "blk.0.attn_q_norm.weight")  # fmt: skip
    tensors = [TensorInfo(name, "f32", (256, 4), 0, 0, 0) for name in names]
    tensors.append(TensorInfo("blk.0.ffn_up_exps.weight", "mxfp4", (256, 4, 8), 0, 0, 0))
    tensors.append(TensorInfo("blk.0.vector.weight", "f32", (256, 1), 0, 0, 0))
    types = target_types(tensors, PRESETS["Q4_K_M"], SHELLS[0].facts, has_imatrix=False)
    assert types == {tensor.name: tensor.dtype for tensor in tensors}


def test_presets_by_name() -> None:
    assert find_preset("q4_k_m") is PRESETS["Q4_K_M"]
    assert find_preset("Q3_K") is PRESETS["Q3_K_M"]
    assert set(ALIASES.values()) <= set(PRESETS)
    with pytest.raises(ConfigError, match=r"^preset is one of F32, .*Q4_K_M.*, got 'Q4_K_X'"):
        find_preset("Q4_K_X")
