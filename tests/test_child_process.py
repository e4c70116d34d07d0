"""Children end with the process that started them, and with nothing else of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from ollama_engine.child_process import _Starter, start_child
from tests.support.waiting import eventually, join, status_of

CHILD = """
import os, sys, time
from ollama_engine.child_process import end_with_parent
end_with_parent(lambda: None)
os.write(int(sys.argv[1]), b"listens")
time.sleep(60)
"""
"""A child that does not end when its standard input does, as one that computes without Python's lock."""
PARENT = """
import os, sys, threading, time
from ollama_engine.child_process import _Starter, start_child
read, write = os.pipe()
child = start_child([sys.executable, "-c", sys.argv[1], str(write)], descriptors=[write])
os.read(read, 7)
print(child.pid, flush=True)
time.sleep(60)
"""
only_linux = pytest.mark.skipif(sys.platform != "linux", reason="prctl is Linux's")


@only_linux
def test_a_child_outlives_the_thread_that_asked_for_it() -> None:
    """A model that a program loads in a thread of a pool, and a worker's process that a thread starts."""
    read, write = os.pipe()
    children: list[subprocess.Popen[bytes]] = []

    def start() -> None:
        children.append(start_child([sys.executable, "-c", CHILD, str(write)], descriptors=[write]))
        os.read(read, 7)

    thread = threading.Thread(target=start)
    thread.start()
    join(thread)
    (child,) = children
    try:
        time.sleep(0.2)
        assert child.poll() is None
    finally:
        child.kill()
        child.communicate()
        os.close(read)
        os.close(write)


@only_linux
def test_a_child_ends_with_its_parent() -> None:
    """However that ends, and though the child does not look at its standard input."""
    parent = subprocess.Popen([sys.executable, "-c", PARENT, CHILD], stdout=subprocess.PIPE)
    with parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        parent.send_signal(signal.SIGKILL)
    eventually(lambda: not _lives(child))


def test_a_child_that_cannot_be_started() -> None:
    with pytest.raises(OSError, match="no-such-program"):
        start_child(["/no-such-program"])


@only_linux
def test_a_process_that_was_forked_while_its_parent_started_a_child_starts_its_own() -> None:
    with _Starter._lock:
        forked = os.fork()
        if forked == 0:
            status = 1
            try:
                child = start_child([sys.executable, "-c", ""])
                status = child.wait()
            finally:
                os._exit(status)
    assert status_of(forked) == 0


def _lives(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
