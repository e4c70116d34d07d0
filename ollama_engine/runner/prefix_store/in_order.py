"""in_order: reads pieces with several threads, and gives them in order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from queue import SimpleQueue
from threading import Lock, Thread
from typing import TypeVar

__all__ = ["in_order"]

T = TypeVar("T")


def in_order(
    n: int, threads: int, allowed: Callable[[], bool], read: Callable[[int], T | None]
) -> Iterator[T | None]:  # fmt: skip
    """What `read` returns for each number below `n`, in order. So many threads call it, which end with the numbers.

    `allowed` is asked before each, in their order, and may wait; None where it says False. Neither may raise.
    """
    answers = [SimpleQueue[T | None]() for _ in range(n)]
    numbers, turn = iter(range(n)), Lock()

    def work() -> None:
        while True:
            with turn:
                number = next(numbers, None)
                if number is None:
                    return
                may = allowed()
            answers[number].put(read(number) if may else None)

    for started in range(min(threads, n)):
        try:
            Thread(target=work, name="ollama_engine prefix blocks", daemon=True).start()
        except RuntimeError:  # the system gives no more threads
            if not started:
                raise
    return (answer.get() for answer in answers)
