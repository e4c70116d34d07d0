"""Where the embeddings of tokens lie when the output is computed with them, too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ollama_engine.ml.device.placement import BackendParams
from ollama_engine.ml.device.placement_plan import Placement
from ollama_engine.ml.gguf.gguf_file import GGUFFile
from ollama_engine.ml.graph.backend import Backend
from ollama_engine.ml.weights.weight_plan import OUTPUT, TIED, WeightPlan, plan_weights
from tests.support.tiny import write_tiny_llama

GPU, OTHER, CPU = 0, 1, 2
K_QUANT = {"dtype": "q4_K", "n_embd": 256, "n_ff": 256}


def planned(folder: Path, layers: tuple[int, int], output: int, **fields: Any) -> WeightPlan:
    path = folder / "model.gguf"
    write_tiny_llama(path, **{"n_layer": 2, "tied": True, **fields})
    with GGUFFile(str(path)) as gguf, Backend(BackendParams(threads=1, gpu_layers=0)) as backend:
        placement = Placement(layers, layers, output, CPU)
        return plan_weights(backend, gguf, placement, mmap=True, tied=True, cpu=CPU)


@pytest.mark.parametrize("dtype", ["f32", "f16", "q8_0"])
def test_they_lie_with_the_output_where_the_first_layer_does(tmp_path: Path, dtype: str) -> None:
    plan = planned(tmp_path, (GPU, OTHER), GPU, dtype=dtype, n_embd=64)
    assert plan.devices[TIED] == GPU
    assert OUTPUT not in plan.infos
    assert TIED not in plan.mapped
    taken = plan.planned(("GPU", "OTHER", "CPU"))
    assert taken["CPU"] == {"weights": 0, "mapped": 0, "repacked": 0}
    assert plan.by_layer()["output"] >= plan.infos[TIED].nbytes
    assert "input" not in plan.by_layer()


@pytest.mark.parametrize(
    ("layers", "output", "fields"),
    [((CPU, GPU), GPU, {}), ((GPU, OTHER), OTHER, {}), ((CPU, CPU), GPU, {}), ((GPU, GPU), GPU, K_QUANT)],
    ids=["first layer here", "first layer elsewhere", "the output alone", "a type that few devices look up"],
)
def test_the_output_has_a_copy_elsewhere(
    tmp_path: Path, layers: tuple[int, int], output: int, fields: dict[str, Any]
) -> None:
    plan = planned(tmp_path, layers, output, **fields)
    assert plan.devices[TIED] == CPU
    assert plan.devices[OUTPUT] == output
    assert plan.infos[OUTPUT].nbytes == plan.infos[TIED].nbytes


def test_on_the_cpu_there_is_one(tmp_path: Path) -> None:
    plan = planned(tmp_path, (GPU, GPU), CPU)
    assert plan.devices[TIED] == CPU
    assert OUTPUT not in plan.infos
