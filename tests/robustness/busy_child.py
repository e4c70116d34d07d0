"""Tokens per second with one and two threads on two CPUs that 8 other processes want, too; printed as JSON.

Prints {"1": best rate with one thread, "2": best rate with two, "in use": how many of the two computed at the end}.
Ends early where two threads are as fast as the test asks for.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

from ollama_engine import Engine, SamplingParams, demo

ROUNDS, TOKENS, BURNERS = 16, 16, 8
SHARE = 0.1
"""Of what one thread gets, what two must get. Threads that spin for each other get a fiftieth. Two that do not get all
of it where the machine does nothing else, and a third where it has more to do than this test knows of."""


BURNER = "import os; parent = os.getppid()\nwhile os.getppid() == parent: sum(range(100_000))"


def main() -> None:
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
    burners = [subprocess.Popen([sys.executable, "-c", BURNER]) for _ in range(BURNERS)]
    best = {1: 0.0, 2: 0.0}
    try:
        with Engine(demo.path(), threads=1) as alone, Engine(demo.path(), threads=2) as both:
            for seed in range(ROUNDS):
                if seed > 2 and best[2] >= SHARE * best[1]:
                    break
                for threads, engine in ((1, alone), (2, both)):
                    usage = engine.generate("One day", SamplingParams(max_tokens=TOKENS, seed=seed)).usage
                    best[threads] = max(best[threads], usage.completion_tokens / usage.completion_seconds)
            print(json.dumps({**best, "in use": both.metrics.threads}))
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()


if __name__ == "__main__":
    main()
