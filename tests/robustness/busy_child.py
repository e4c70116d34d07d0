"""Tokens per second of CPU with one and two threads on two CPUs that 8 other processes want, too; printed as JSON.

Prints {"1": rate with one thread, "2": rate with two, "in use": how many of the two computed at the end}. Seconds are
those that the kernel gave this process, on all of its threads: how many it gives beside others is luck, and what is
done with them is not. Threads that spin for each other use them up. Rates are medians: a probe for free CPUs, after
which two threads spin for a step, falls into few rounds.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time

from ollama_engine import Engine, SamplingParams, demo

WARM, ROUNDS, TOKENS, BURNERS = 3, 15, 16, 8
"""Rounds that are not counted, in which the engine finds out that the machine is busy, and those that are."""
PATIENCE = 25
"""Seconds after which no further round begins: threads that spin for each other take 15 of them for one."""
SHARE = 0.8
"""Of what one thread makes of a second, what two must make."""


BURNER = "import os; parent = os.getppid()\nwhile os.getppid() == parent: sum(range(100_000))"


def main() -> None:
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
    burners = [subprocess.Popen([sys.executable, "-c", BURNER]) for _ in range(BURNERS)]
    rates: dict[int, list[float]] = {1: [], 2: []}
    try:
        with Engine(demo.path(), threads=1) as alone, Engine(demo.path(), threads=2) as both:
            end = time.monotonic() + PATIENCE
            for seed in range(WARM + ROUNDS):
                if seed and time.monotonic() > end:
                    break
                for threads, engine in ((1, alone), (2, both)):
                    start = time.process_time()
                    n = len(engine.generate("One day", SamplingParams(max_tokens=TOKENS, seed=seed)).tokens)
                    rates[threads].append(n / (time.process_time() - start))
            counted = {threads: statistics.median(rates[threads][WARM:] or rates[threads]) for threads in rates}
            print(json.dumps({**counted, "in use": both.metrics.threads}))
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()


if __name__ == "__main__":
    main()
