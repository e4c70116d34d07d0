"""What was put in last, within a limit."""

from __future__ import annotations

import threading

from ollama_engine.runner.media.recent import Recent
from tests.support.waiting import join


def test_least_recently_used_goes_first() -> None:
    recent: Recent[str] = Recent(3)
    for key in range(3):
        recent.put(key, str(key))
    assert recent.get(0) == "0"
    recent.put(3, "3")
    assert [recent.get(key) for key in range(4)] == ["0", None, "2", "3"]
    recent.put(3, "again")
    assert [recent.get(key) for key in range(4)] == ["0", None, "2", "again"]
    assert (recent.take(0), recent.take(0)) == ("0", None)


def test_sizes_count() -> None:
    recent: Recent[str] = Recent(10, len)
    recent.put(1, "a" * 6)
    recent.put(2, "b" * 4)
    assert recent.get(1) == "a" * 6
    recent.put(3, "c")
    assert recent.get(2) is None
    recent.put(4, "d" * 99)  # the last one always stays
    assert [recent.get(key) for key in (1, 3, 4)] == [None, None, "d" * 99]


def test_threads() -> None:
    recent: Recent[int] = Recent(50)

    def work(seed: int) -> None:
        for i in range(2000):
            recent.put((i * seed) % 97, i)
            recent.get(i % 97)
            recent.take((i * 3) % 97)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in (1, 5, 7)]
    for thread in threads:
        thread.start()
    join(*threads)
    left = [key for key in range(97) if recent.take(key) is not None]
    assert len(left) <= 50
    assert recent._held == 0
