"""Tokens per second with one and two threads on two CPUs that 8 other processes want, too; printed as JSON.

Prints {"1": best rate with one thread, "2": best rate with two, "in use": how many of the two computed at the end}.
Ends early where two threads are as fast as the test asks for.
"""

from __future__ import annotations

import json
import os
import signal

ROUNDS, TOKENS, BURNERS = 8, 16, 8
SHARE = 0.5
"""Of what one thread gets, what two must get: they get all of it where the machine does nothing else."""


def burn() -> int:
    """Start a process that wants a CPU until this one ends; its number."""
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        while os.getppid() == parent:
            sum(range(100_000))
        os._exit(0)
    return child


def main() -> None:
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
    burners = [burn() for _ in range(BURNERS)]
    from ollama_engine import Engine, SamplingParams, demo  # after the forks, which must not inherit its threads

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
            os.kill(burner, signal.SIGKILL)
            os.waitpid(burner, 0)


if __name__ == "__main__":
    main()
