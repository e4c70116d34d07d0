"""Checks that the system grants a number of threads: ggml ends the process where it cannot start its own."""

from __future__ import annotations

import threading

from ollama_engine.errors import NoMemoryError, Option


def check_threads(n: int) -> None:
    """Start n - 1 threads at once (the caller is the n-th) and end them. Raises NoMemoryError where one fails."""
    done = threading.Event()
    started = []
    try:
        for _ in range(n - 1):
            thread = threading.Thread(target=done.wait, daemon=True)
            thread.start()
            started.append(thread)
    except (RuntimeError, MemoryError) as error:
        raise NoMemoryError(
            f"the system grants {len(started) + 1} threads at once, not {n} ({error})",
            advice=[("lower ", Option("threads"))],
        ) from error
    finally:
        done.set()
        for thread in started:
            thread.join()
