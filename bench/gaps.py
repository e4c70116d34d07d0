"""What gaps between cells cost, where attention reads a run of cells and where it reads a list of them.

    python -m bench.gaps masks|listed|worker [on|off]

Eight prompts are read side by side; five end and leave gaps, three go on. Then: milliseconds of a step of these three,
and of a prompt of 512 tokens beside them; with cells left where they are, and moved together. A list is never moved:
there the other line is of three prompts without gaps. The second argument is
`flash_attention`. The model is random: 6 layers with 8 heads of 64, cache of f16.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from ollama_engine import Engine, SamplingParams
from ollama_engine.runner.core.defragmenting import Defragmenter
from tests.support.tiny import write_tiny_llama
from tests.support.workers import running_worker

N_PROMPT, SECONDS = 750, 3.0
NO_END = {318: float("-inf"), 319: float("-inf")}


def greedy(n: int) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=n, logit_bias=NO_END)


@contextmanager
def opened(path: str, folder: Path, where: str, flash: Any) -> Iterator[Engine]:
    options: dict[str, Any] = {"num_ctx": 4096, "parallel": 8, "threads": 2, "flash_attention": flash}
    with ExitStack() as stack:
        if where == "worker":
            options["devices"] = [stack.enter_context(running_worker(folder)).address]
        elif where == "masks":
            stack.enter_context(patch("ollama_engine.kvcache.causal.suits_paging", lambda *asked: False))
        yield stack.enter_context(Engine(path, **options))


def measure(engine: Engine, n_prompts: int = 8) -> str:
    rng = np.random.default_rng(0)
    prompts = [rng.integers(0, 300, N_PROMPT).tolist() for _ in range(n_prompts)]
    requests = [engine.submit(prompt, greedy(3000 if number < 3 else 8), cache=False)
                for number, prompt in enumerate(prompts)]  # fmt: skip
    for request in requests[3:]:
        request.result(60)
    for request in requests[:3]:
        next(request)
    time.sleep(0.5)  # cells have moved
    before, begin = engine.metrics.completion_tokens, time.perf_counter()
    time.sleep(SECONDS)
    step = (time.perf_counter() - begin) * 3e3 / (engine.metrics.completion_tokens - before)
    begin = time.perf_counter()
    engine.generate(rng.integers(0, 300, 512).tolist(), greedy(1), cache=False)
    prompt = 1e3 * (time.perf_counter() - begin)
    moves = [s.spans[0].end - s.spans[0].begin for s in engine._monitor.trace.steps() if s.spans[0].phase == "defrag"]
    moved = engine.metrics.moved_cells
    each = f", moved {moved} cells in {len(moves)} gaps, {1e3 * max(moves):.1f} ms at most" if moves else ""
    return f"step {step:.1f} ms, prompt {prompt:.0f} ms{each}"


def main() -> None:
    where, flash = sys.argv[1], (sys.argv[2:] or ["on"])[0]
    with tempfile.TemporaryDirectory() as folder:
        path = write_tiny_llama(Path(folder) / "model.gguf", n_layer=6, n_embd=512, n_head=8, n_head_kv=8, seed=1).path
        with opened(path, Path(folder), where, flash) as engine, \
                patch.object(Defragmenter, "serve_gap", lambda *asked: True):  # fmt: skip
            print(f"{where}, flash attention {flash}: left  {measure(engine)}", flush=True)
        with opened(path, Path(folder), where, flash) as engine:
            if where == "listed":  # nothing moves there: the same three without the five that leave gaps
                print(f"{where}, flash attention {flash}: none  {measure(engine, 3)}", flush=True)
            else:
                print(f"{where}, flash attention {flash}: moved {measure(engine)}", flush=True)


if __name__ == "__main__":
    main()
