"""The performance gate: is one of ggml's kernels faster than what the engine takes, on this machine?

    python -m bench.gate                          # minutes; exit status 1 where a floor is missed
    python -m bench.gate --all                    # every weight type
    python -m bench.gate --only q4_K memory       # rows with all of these words
    python -m bench.gate --threads 2 --model llama-1b-q4_k_m.gguf

Nothing is compared with another run or another machine. Each row has sides that take turns in one process: what the
engine chooses ("ours"), and ggml's kernels; its floor in bench/targets.py says how many times as fast ours is, at
least. `from memory` reads weights that no cache holds, and shows beside them what a plain read of memory gives.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.gate import attention, host, model, products
from bench.gate.known_losses import known_loss, unknown
from bench.gate.verdict import Group, judge, line, summary
from bench.products import bytes_from_memory
from ollama_engine.errors import EngineError
from ollama_engine.ml.device.cpu_facts import cpu_identity, last_level_cache
from ollama_engine.ml.device.placement import BackendParams
from ollama_engine.ml.graph.backend import Backend
from ollama_engine.ml.weights.kernel_choice import THIS_CPU


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="python -m bench.gate", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--all", action="store_true", help="every weight type")
    made.add_argument("--only", nargs="+", default=[], metavar="WORD", help="rows with all of these in their name")
    made.add_argument(
        "--known-losses", action="store_true", help="hold rows that bench/gate/known_losses.py names to its floors"
    )
    made.add_argument("--no-model", action="store_true", help="leave out the model, where it cannot be downloaded")
    made.add_argument("--threads", type=int, default=1, metavar="N", help="of products; the model has all CPUs'")
    made.add_argument("--model", type=Path, metavar="FILE", help="instead of SmolLM2, which is downloaded once")
    return made


@contextmanager
def all_groups(chosen: argparse.Namespace) -> Iterator[list[Group]]:
    nbytes = bytes_from_memory()
    kernels = THIS_CPU or "a CPU without AVX2"
    print(f"{cpu_identity()}, kernels as for {kernels}; largest cache {last_level_cache() >> 20} MiB, {nbytes >> 20} "
          "MiB of weights from memory", flush=True)  # fmt: skip
    with Backend(BackendParams(threads=chosen.threads, gpu_layers=0), max_nodes=1024) as backend:
        machine = products.Machine(backend, nbytes)
        found = [host.group(), attention.group(), *products.groups(machine, everything=chosen.all)]
        if not chosen.no_model:
            found.append(model.group(chosen.model))
        yield [kept for group in found if (kept := group.only(chosen.only)).floors]


def main(arguments: list[str] | None = None) -> int:
    chosen = parser().parse_args(arguments)
    with all_groups(chosen) as groups:
        if not groups:
            raise SystemExit(f"gate: no row has all of {', '.join(chosen.only)} in its name")
        verdicts = judge(groups, lambda verdict: print(line(verdict), flush=True))
    print("\n".join(["", *summary(verdicts)]))
    missed = [verdict for verdict in verdicts if verdict.missed]
    loss = known_loss() if chosen.known_losses else None
    if missed and loss is not None:
        print(f"KNOWN LOSS on this CPU ({loss.reason}): rows like {loss.rows}, down to {loss.floor:g}")
    return int(bool(unknown(missed, loss)))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except EngineError as error:
        sys.exit(f"error: {error}")
