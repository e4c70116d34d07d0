"""One caller's decoding, engine beside engine in turns of half a second, all of them loaded for the whole comparison.

What memory gives changes within seconds where other machines share it: in runs of several seconds each, one after the
other, the same engine was once at 35 and once at 50 tokens/s. Here each round asks every engine for a few tokens, and
the ratio counts that each round has by itself: its median, and the interval that holds the median of such rounds in 95
of 100 cases. An engine that is not asked is stopped, so that its threads do not spin.

Turns in which ours gave way to other programs do not count, and those in which they disturbed a peer do: beside such
programs this favours ours, so stop them first.
"""

from __future__ import annotations

import json
import math
import os
import signal
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from bench import peer_engines, peer_packages, peer_single

OURS = "ollama_engine"
WARM, MOST = 8, 256
"""Tokens of each engine before the first round, and of a turn at most."""


@dataclass(frozen=True)
class Ask:
    """Seconds of a turn of the fastest engine, threads, rounds."""

    seconds: float
    threads: int
    rounds: int


def _here(engine: str, ask: Ask, model: str) -> list[str]:
    program = str(Path(__file__).with_name("decode_child.py"))
    return [sys.executable, program, engine, model, "-t", str(ask.threads)]


def _ik(ask: Ask, model: str, *options: str) -> list[str]:
    program = str(Path(__file__).with_name("peer_child.py"))
    return [str(peer_packages.PYTHON), program, "ik", model, "-t", str(ask.threads), "--turns", "--flash", *options]


COMMANDS: Mapping[str, Callable[[Ask, str], list[str]]] = MappingProxyType({
    OURS: lambda ask, model: _here("ours", ask, model),
    "llama.cpp": lambda ask, model: _here("llama.cpp", ask, model),
    "ik-native": _ik,
    "ik-native-rtr": lambda ask, model: _ik(ask, model, "--repack"),
})  # fmt: skip


# -- turns -------------------------------------------------------------------------------------------------------------


class Child:
    """A loaded engine, stopped between its turns."""

    def __init__(self, name: str, command: Sequence[str]) -> None:
        self._name = name
        library = peer_packages.native_library()
        added = {"IK_LLAMA_CPP_LIB_PATH": str(library)} if library else {}
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            env=os.environ | added,
        )  # fmt: skip

    def decode(self, n: int) -> tuple[float, int]:
        """Tokens/s of the next `n`, and the number of threads."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.send_signal(signal.SIGCONT)
        with suppress(BrokenPipeError):  # it has ended, and closed its input
            self._process.stdin.write(f"{n}\n")
            self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise ChildProcessError(f"{self._name} ended with {self._process.wait()}")
        self._process.send_signal(signal.SIGSTOP)
        seconds, threads = json.loads(line)
        return n / seconds, threads

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


@contextmanager
def _loaded(model: str, engines: Sequence[str], ask: Ask) -> Iterator[dict[str, Child]]:
    with ExitStack() as undo:
        children = {}
        for name in engines:
            children[name] = Child(name, COMMANDS[name](ask, model))
            undo.callback(children[name].close)
        yield children


def measure(model: str, engines: Sequence[str], ask: Ask) -> dict[str, list[float]]:
    """Tokens/s of each round, by engine; the one that begins a round changes.

    Rounds in which ours gave way to other programs compare no engines: they are left out, and stderr says how many.
    Raises ChildProcessError where an engine ends, RuntimeError where all rounds are left out.
    """
    rounds: list[dict[str, float]] = []
    with _loaded(model, engines, ask) as children:
        fastest = max(children[name].decode(WARM)[0] for name in engines)
        n = min(MOST, max(WARM, round(fastest * ask.seconds)))
        for turn in range(ask.rounds):
            order = [engines[(turn + i) % len(engines)] for i in range(len(engines))]
            done = {name: children[name].decode(n) for name in order}
            if all(threads == ask.threads for _, threads in done.values()):
                rounds.append({name: speed for name, (speed, _) in done.items()})
    if len(rounds) < ask.rounds:
        print(f"{model}: {ask.rounds - len(rounds)} rounds left out, in which ours gave way", file=sys.stderr)
    if not rounds:
        raise RuntimeError("the machine is busy in every round, so this compares no engines")
    return {name: [speeds[name] for speeds in rounds] for name in engines}


# -- what it shows -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ratio:
    """Median of a ratio over rounds, and the ends of its interval."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"**{self.median:.2f}** ({self.low:.2f} to {self.high:.2f})"


def ratio(ours: Sequence[float], peer: Sequence[float]) -> Ratio:
    """Of each round by itself; 95 % by order statistics (a sign test turned round), which asks nothing of the noise.

    Below 6 rounds it is their whole range, which is right less often.
    """
    values = sorted(a / b for a, b in zip(ours, peer, strict=True))
    n, below, chance = len(values), -1, 0.0
    while (chance := chance + math.comb(n, below + 1) / 2**n) <= 0.025:
        below += 1
    below = max(below, 0)
    return Ratio(statistics.median(values), values[below], values[n - 1 - below])


def compare(models: Sequence[str], names: Sequence[str], ask: Ask) -> dict[str, Any]:
    """{model: {engine: [tokens/s]}}; engines and models that are left out are named on stderr, with the reason."""
    results: dict[str, Any] = {}
    for model in models:
        single = peer_single.Ask(model, 0, MOST, ask.threads)
        here = []
        for name in names:
            reason = peer_engines.ENGINES[name].missing(single)
            if reason:
                print(f"{name}: {reason}", file=sys.stderr)
            else:
                here.append(name)
        try:
            results[os.path.basename(model)] = measure(model, here, ask)
            print(f"measured {model}", file=sys.stderr)
        except (ChildProcessError, RuntimeError) as error:  # other models' rounds are kept
            print(f"{model}: {error}", file=sys.stderr)
    return results


def report(results: Mapping[str, Mapping[str, Sequence[float]]]) -> str:
    names = list(dict.fromkeys(name for speeds in results.values() for name in speeds))
    peers = [name for name in names if name != OURS]
    head = ["file", *names, *(f"over {name}" for name in peers)]
    lines = [head, ["---", *("---:" for _ in head[1:])]]
    for model, speeds in results.items():
        row = [
            model.removesuffix(".gguf"),
            *(f"{statistics.median(speeds[n]):.1f}" if n in speeds else "-" for n in names),
        ]
        row += [str(ratio(speeds[OURS], speeds[n])) if {OURS, n} <= speeds.keys() else "-" for n in peers]
        lines.append(row)
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
