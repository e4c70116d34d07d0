"""32 sequences with checkpoints of a recurrent model: the process grows by what the memory report says."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from bench.make_recurrent import SHAPES, write_recurrent

STATUS = Path("/proc/self/status")
PARALLEL = 32
TOLERANCE = 0.03
"""Of the report. Beside it lie what Python keeps of requests and tables of the vocabulary."""
SHAPE = replace(SHAPES["qwen35"], layers="MMM*", n_embd=256, n_ff=256, n_vocab=600, n_head=2, n_head_kv=1, n_heads=4,
                n_groups=4, d_inner=512)  # fmt: skip
"""0.8 MiB for a state."""
CHILD = """
import json, sys
from pathlib import Path
from ollama_engine import Engine, SamplingParams

def anonymous():
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields["RssAnon"].split()[0]) << 10

def run(engine, n, seed):
    prompts = [[(7 * at * (s + 1) + seed) % 500 + 10 for at in range(40)] for s in range(n)]
    params = SamplingParams(temperature=0, max_tokens=4)
    for request in [engine.submit(prompt, params) for prompt in prompts]:
        request.result()

path, parallel = sys.argv[1], int(sys.argv[2])
options = {"num_ctx": 128, "threads": 1, "gpu_layers": 0}
with Engine(path, parallel=1, state_cache_bytes=0, **options) as engine:
    run(engine, 1, 0)
before = anonymous()
with Engine(path, parallel=parallel, **options) as engine:
    loaded = anonymous() - before
    for seed in range(3):
        run(engine, parallel, seed)
    device = engine.memory.devices[-1]
    sizes = {"states": device.states, "report": device.allocated, "loaded": loaded, "grown": anonymous() - before}
    print(json.dumps(sizes))
"""


@pytest.mark.skipif(not STATUS.exists(), reason="Linux alone says there what a process takes")
def test_the_report_is_what_the_process_takes(tmp_path: Path) -> None:
    path = tmp_path / "small.gguf"
    write_recurrent(str(path), SHAPE, "q8_0")
    done = subprocess.run([sys.executable, "-c", CHILD, str(path), str(PARALLEL)], capture_output=True, text=True,
                          check=False, timeout=50)  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["states"] > 100 << 20, "the rest is small beside them"
    assert found["grown"] == pytest.approx(found["report"], rel=TOLERANCE), found
