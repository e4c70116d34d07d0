"""32 sequences with checkpoints of a recurrent model: the process grows by what the memory report says."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from bench.make_recurrent import SHAPES, write_recurrent
from tests.support.emulated import TIMES_AS_LONG

SMAPS = Path("/proc/self/smaps_rollup")
PARALLEL = 32
TOLERANCE = 0.03
"""Of the report. Beside it lie what Python keeps of requests and tables of the vocabulary."""
SMALL = {"n_embd": 256, "n_ff": 256, "n_vocab": 600, "n_head": 2, "n_head_kv": 1}
SHAPES_HERE = {
    "qwen35": replace(SHAPES["qwen35"], layers="MMM*", n_heads=4, n_groups=4, d_inner=512, **SMALL),
    "nemotron-h": replace(SHAPES["nemotron-h"], layers="M-M*M-", n_heads=8, n_groups=2, d_inner=640, **SMALL),
}
FLOATS = {"qwen35": 1536 * 3 + 128 * 512, "nemotron-h": 1152 * 3 + 128 * 640 + 8 * 3}
"""Of a layer's state: the convolution's last 3 inputs, and a matrix (Mamba-2: with a scale for each 32 of its rows)."""
SLOTS = 2 * PARALLEL + 512 + 4
"""For each sequence a state that is read and one that is written; the most checkpoints; those behind a draft's rows."""
CHILD = """
import json, sys
from pathlib import Path
from ollama_engine import Engine, SamplingParams

def anonymous():
    fields = dict(line.split(":", 1) for line in Path("/proc/self/smaps_rollup").read_text().splitlines()[1:])
    return int(fields["Anonymous"].split()[0]) << 10

def run(engine, n, seed):
    prompts = [[(7 * at * (s + 1) + seed) % 500 + 10 for at in range(40)] for s in range(n)]
    params = SamplingParams(temperature=0, max_tokens=4)
    requests = [engine.submit(prompt, params) for prompt in prompts]
    return [request.result().usage.cached_tokens for request in requests]

path, parallel = sys.argv[1], int(sys.argv[2])
options = {"num_ctx": 128, "threads": 1, "gpu_layers": 0}
with Engine(path, parallel=1, state_cache_bytes=0, **options) as engine:
    run(engine, 1, 0)
before = anonymous()
with Engine(path, parallel=parallel, **options) as engine:
    for seed in range(3):
        run(engine, parallel, seed)
    kept = run(engine, parallel, seed)
    device = engine.memory.devices[-1]
    sizes = {"states": device.states, "report": device.allocated, "grown": anonymous() - before, "kept": kept}
    print(json.dumps(sizes))
"""


@pytest.mark.parametrize("model", SHAPES_HERE)
@pytest.mark.skipif(not SMAPS.exists(), reason="Linux alone says there what a process takes")
def test_the_report_is_what_the_process_takes(tmp_path: Path, model: str) -> None:
    path, shape = tmp_path / "small.gguf", SHAPES_HERE[model]
    write_recurrent(str(path), shape, "q8_0")
    done = subprocess.run([sys.executable, "-c", CHILD, str(path), str(PARALLEL)], capture_output=True, text=True,
                          check=False, timeout=50 * TIMES_AS_LONG)  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["kept"] == [39] * PARALLEL, "each has a checkpoint before its prompt's last token"
    assert found["states"] == SLOTS * shape.layers.count("M") * 4 * FLOATS[model], "to the byte"
    assert found["grown"] == pytest.approx(found["report"], rel=TOLERANCE), found
