"""WorkerFront: takes the connections of a worker, and gives each program a process of its own that serves it.

ggml serves one connection at a time, and ends its process where a program sends what a device cannot compute. With a
process for each program several can use one worker, one that crashes takes no other with it, and what a program held is
free when it has gone.
"""

from __future__ import annotations

import contextlib
import socket
import subprocess
import threading
import time
from collections.abc import Callable

from ollama_engine.child_process import how_it_ended
from ollama_engine.errors import DeviceError
from ollama_engine.ml.workers.worker_client import keep_alive
from ollama_engine.worker.weight_cache import CacheView, WeightCache

__all__ = ["WorkerFront"]

START_SECONDS = 60.0
"""How long a serving process may take until it takes connections."""
QUICK_SECONDS = 10.0
"""After a process that ended by itself sooner than this, the next one is not started at once."""
LOOK_SECONDS = 1.0
"""How often it is seen to that there is a process."""
LEAVE_SECONDS = 30.0
"""How long a process may compute for a program that has gone, and take to end when it is killed."""
MOST_PROGRAMS = 16
"""Programs served at once; others wait to be connected."""
CHUNK = 1 << 20
OUT_OF_RESOURCES = (OSError, RuntimeError, MemoryError)
"""Exceptions of Python when no descriptor, process, thread (a RuntimeError) or memory is left."""

StartProcess = Callable[[int, "str | None"], "subprocess.Popen[bytes]"]
"""Starts a process that serves the connections which come over this descriptor, and keeps weights in this folder."""


class WorkerFront:
    """Serves at a listening socket, which it takes over. Every method is called on one thread.

    `tell` is told what goes wrong, from any thread. `cache`: weights that outlast processes.
    """

    def __init__(
        self, listener: socket.socket, start: StartProcess, tell: Callable[[str], None], cache: WeightCache | None
    ) -> None:
        self._listener = listener
        self._start = start
        self._tell = tell
        self._cache = cache
        self._lock = threading.Lock()
        self._all: set[_Serving] = set()
        self._idle: list[_Serving] = []
        self._places = threading.BoundedSemaphore(MOST_PROGRAMS)
        self._not_before = 0.0
        self._closed = False

    def begin(self) -> None:
        """Start the first process. Raises DeviceError where it takes no connections."""
        self._started().connected().close()

    def serve(self) -> None:
        """Take connections, until an exception such as KeyboardInterrupt ends it."""
        self._listener.settimeout(LOOK_SECONDS)
        while True:
            self._keep_one()
            if not self._places.acquire(timeout=LOOK_SECONDS):
                continue
            try:
                self._take_connection()
            except OUT_OF_RESOURCES as error:
                self._places.release()
                if not isinstance(error, TimeoutError):  # nothing is left for it, or who came has gone
                    self._tell(f"a connection is lost: {error}")
                    time.sleep(LOOK_SECONDS)

    def _take_connection(self) -> None:
        connection, peer = self._listener.accept()
        with contextlib.ExitStack() as undo:
            undo.callback(connection.close)  # or its program would wait
            serving = self._taken()
            undo.callback(serving.end)
            threading.Thread(
                target=self._serve, args=(connection, f"{peer[0]}:{peer[1]}", serving), daemon=True
            ).start()
            undo.pop_all()

    def close(self) -> None:
        """End all processes, and so the programs' connections."""
        self._closed = True
        self._listener.close()
        for serving in list(self._all):
            serving.end()

    # -- processes -----------------------------------------------------------------------------------------------------

    def _keep_one(self) -> None:
        """Have a process ready for the first program. Not one more beside it: each takes memory of a GPU."""
        with self._lock:
            alive = any(serving.lives for serving in self._all)
        if not alive and time.monotonic() >= self._not_before:
            try:
                self._started()
            except OUT_OF_RESOURCES as error:
                self._tell(f"no process can be started: {error}")
                self._not_before = time.monotonic() + QUICK_SECONDS

    def _taken(self) -> _Serving:
        with self._lock:
            while self._idle:
                serving = self._idle.pop()
                if serving.lives:
                    return serving
        serving = self._started()
        with self._lock:
            if serving in self._idle:
                self._idle.remove(serving)
        return serving

    def _started(self) -> _Serving:
        with contextlib.ExitStack() as undo:
            view = None if self._cache is None else self._cache.view()
            if view is not None:
                undo.callback(view.close)
            serving = _Serving(self._start, view)
            undo.callback(serving.end)
            with self._lock:
                self._all.add(serving)
                self._idle.append(serving)
            undo.callback(self._forget, serving)
            threading.Thread(target=self._watch, args=(serving,), daemon=True).start()
            undo.pop_all()
        return serving

    def _forget(self, serving: _Serving) -> None:
        with self._lock:
            self._all.discard(serving)
            if serving in self._idle:
                self._idle.remove(serving)

    def _watch(self, serving: _Serving) -> None:
        """Tell how a process ended, unless `_Serving.end` was called."""
        code = serving.wait()
        self._forget(serving)
        if not serving.end_requested and not self._closed:
            quick = serving.seconds < QUICK_SECONDS
            self._not_before = time.monotonic() + (QUICK_SECONDS if quick else 0.0)
            whom = "waited for a program" if serving.peer is None else f"served {serving.peer}"
            self._tell(f"the process that {whom} {how_it_ended(code)}; lines above may say why. "
                       "The next program gets another process")  # fmt: skip

    # -- one connection, on a thread of its own ------------------------------------------------------------------------

    def _serve(self, connection: socket.socket, peer: str, serving: _Serving) -> None:
        try:
            with connection:
                keep_alive(connection)  # or a machine that is gone would keep its memory here for ever
                serving.peer = peer
                with serving.connected() as inside:
                    serving.refresh_cache()
                    left = _exchange(connection, inside, serving)
            # Whose process has hung up has crashed, or has been sent what is no command.
            self._give_back(serving, usable=left or not serving.ended.wait(LOOK_SECONDS))
        except OUT_OF_RESOURCES as error:  # or it does not start, or weights cannot be kept
            if not self._closed:
                self._tell(f"{peer} is not served any more: {error}")
            serving.end()
        finally:
            self._places.release()

    def _give_back(self, serving: _Serving, *, usable: bool) -> None:
        """Keep a process for the next program, where none waits already."""
        if not usable:
            return
        serving.keep_cache()
        with self._lock:
            keep = serving.lives and not any(other.lives for other in self._idle) and not self._closed
            if keep:
                serving.peer = None
                self._idle.append(serving)
        if not keep:
            serving.end()


class _Serving:
    """A process that serves one program after the other: each connection is handed to it, and it listens nowhere."""

    def __init__(self, start: StartProcess, cache: CacheView | None) -> None:
        self._connections, its_end = socket.socketpair()
        self._connections.settimeout(LOOK_SECONDS)
        self._takes_connections = False
        self._cache = cache
        with contextlib.ExitStack() as undo, its_end:
            undo.callback(self._connections.close)
            self._process = start(its_end.fileno(), None if cache is None else str(cache.path))
            undo.pop_all()
        self._began = time.monotonic()
        self.peer: str | None = None
        self.end_requested = False
        """Whether `end` was called."""
        self.ended = threading.Event()

    @property
    def lives(self) -> bool:
        return not self.ended.is_set()

    @property
    def seconds(self) -> float:
        """Since it was started."""
        return time.monotonic() - self._began

    def wait(self) -> int:
        """Its exit code, once it has ended."""
        code = self._process.wait()
        self.ended.set()
        if self._cache is not None:
            self._cache.close()
        return code

    def refresh_cache(self) -> None:
        """Have the next program find what other processes have kept."""
        if self._cache is not None:
            self._cache.refresh()

    def keep_cache(self) -> None:
        """Let others use what the last program has sent."""
        if self._cache is not None:
            self._cache.keep()

    def connected(self) -> socket.socket:
        """A connection to it. Raises DeviceError where it ends first, or takes too long."""
        end = time.monotonic() + START_SECONDS
        while not self._takes_connections and self.lives and time.monotonic() < end:
            with contextlib.suppress(TimeoutError):
                if not self._connections.recv(1):
                    break
                self._takes_connections = True
        if self._takes_connections:
            inside, its_end = socket.socketpair()
            with contextlib.suppress(OSError), its_end:  # where it has ended, `inside` has, too
                socket.send_fds(self._connections, [b"1"], [its_end.fileno()])
            return inside
        what = "takes too long to start" if self.lives else "ended before it served; the lines above say why"
        raise DeviceError(f"the serving process {what}")

    def end(self) -> None:
        """End it now."""
        self.end_requested = True
        with contextlib.suppress(OSError):
            self._process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):  # a driver may keep what was killed
            self._process.wait(LEAVE_SECONDS)
        self._connections.close()
        if self._process.stdin is not None:
            self._process.stdin.close()
        if self._cache is not None:
            self._cache.close()


def _exchange(client: socket.socket, inside: socket.socket, serving: _Serving) -> bool:
    """Pass on what both ends say, until both have ended, and the ends, too. Whether the client was the first to end."""
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    gone: list[socket.socket] = []  # in the order in which they were seen to end

    def answers() -> None:
        _pass_on(inside, client, gone.append)
        with contextlib.suppress(OSError):
            client.shutdown(socket.SHUT_RDWR)  # has the other direction return

    back = threading.Thread(target=answers, daemon=True)
    back.start()
    _pass_on(client, inside, gone.append)
    back.join(LEAVE_SECONDS)
    if back.is_alive():
        serving.end()
        for end in (client, inside):  # one does not read what it is sent, or a driver keeps the process
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        back.join()
    return gone[0] is client


def _pass_on(source: socket.socket, target: socket.socket, has_gone: Callable[[socket.socket], object]) -> None:
    """Pass on until one of them has gone. `has_gone` is told first: the other may hang up once it learns of it."""
    buffer = memoryview(bytearray(CHUNK))
    ended = source
    with contextlib.suppress(OSError):
        while n := source.recv_into(buffer):
            ended = target
            target.sendall(buffer[:n])
            ended = source
    has_gone(ended)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)
