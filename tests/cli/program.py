"""Runs ollama-engine as users do: a process of its own, with its streams as pipes or as a terminal."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

COMMAND = [sys.executable, "-m", "ollama_engine.cli.main"]
TIME_LIMIT = 50
RETYPE_SECONDS = 5

LETTERS_BIAS = dict.fromkeys(range(97, 123), 1000.0)
"""With this bias the tiny models answer in small letters, and never end."""
LETTERS = tuple(f"--logit-bias={token}={bias}" for token, bias in LETTERS_BIAS.items())


@dataclass(frozen=True)
class Ended:
    """Exit code and output of a process that has ended."""

    code: int
    out: bytes
    err: str


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name != "OLLAMA_ENGINE_LOG"}
    return {**kept, **(extra or {})}


def program(*args: str, given: bytes | None = None, env: Mapping[str, str] | None = None) -> Ended:
    """Run to the end. `given` is piped in; without it standard input is empty."""
    done = subprocess.run(
        [*COMMAND, *args],
        input=given or b"",
        capture_output=True,
        env=environment(env),
        timeout=TIME_LIMIT,
        check=False,
    )
    return Ended(done.returncode, done.stdout, done.stderr.decode(errors="replace"))


def json_of(cli: Callable[..., Any], *args: str) -> Any:
    """The object that a command writes with `--json`; `cli` is the fixture."""
    result = cli(*args, "--json")
    assert (result.code, result.err) == (0, "")
    return json.loads(result.out)


def imported_by(argv: list[str]) -> tuple[set[str], str]:
    """Modules that the program imports for these arguments, and its output."""
    code = (
        "import sys\n"
        "from ollama_engine.cli.main import main\n"
        "try:\n    main(sys.argv[1:])\n"
        "except SystemExit:\n    pass\n"
        "print('\\n'.join(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code, *argv], capture_output=True, text=True, check=True, timeout=60)
    return set(done.stderr.split()), done.stdout


# The new terminal becomes the one that controls the process, so that Ctrl-C typed there is a signal. A shell's
# background job ignores it, and so would all that the job starts.
_IN_TERMINAL = """
import fcntl, signal, sys, termios
signal.signal(signal.SIGINT, signal.default_int_handler)
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
from ollama_engine.cli.main import main
sys.exit(main())
"""


class Terminal:
    """The program in a terminal, and what it has shown so far. A context manager."""

    def __init__(self, *args: str) -> None:
        ours, theirs = os.openpty()
        self._fd = ours
        self.shown = b""
        self._process = subprocess.Popen(
            [sys.executable, "-c", _IN_TERMINAL, *args],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=environment({"TERM": "dumb"}),
            start_new_session=True,
        )
        os.close(theirs)

    def type(self, text: bytes) -> None:
        os.write(self._fd, text)

    def wait_for(self, text: bytes, *, more: int = 0) -> bytes:
        """Everything up to the first `text` and `more` bytes, removed from `shown`."""
        limit = time.monotonic() + TIME_LIMIT
        while text not in self.shown or len(self.shown) < self.shown.index(text) + len(text) + more:
            ready, _, _ = select.select([self._fd], [], [], max(0, limit - time.monotonic()))
            assert ready, f"{text!r} did not come; shown: {self.shown!r}"
            self.shown += self._read()
        end = self.shown.index(text) + len(text) + more
        before, self.shown = self.shown[:end], self.shown[end:]
        return before

    def _read(self) -> bytes:
        try:
            data = os.read(self._fd, 65536)
        except OSError:  # Linux: the other end is closed
            data = b""
        assert data, f"the program ended; shown: {self.shown!r}"
        return data

    def end(self, typed: bytes = b"") -> int:
        """The exit code after typing this; what is still shown is read so that the process is not held up.

        It is typed again every few seconds: CPython's readline shows its prompt a moment before it waits for input,
        and a Ctrl-C between the two is seen only when the next key is pressed.
        """
        limit, again = time.monotonic() + TIME_LIMIT, 0.0
        while self._process.poll() is None:
            now = time.monotonic()
            assert now < limit, f"the program does not end; shown: {self.shown!r}"
            if typed and now >= again:
                self.type(typed)
                again = now + RETYPE_SECONDS
            if select.select([self._fd], [], [], 0.05)[0]:
                try:
                    self.shown += os.read(self._fd, 65536)
                except OSError:
                    self._process.wait(TIME_LIMIT)
        return self._process.returncode

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *error: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait(TIME_LIMIT)
        os.close(self._fd)
