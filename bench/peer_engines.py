"""Every engine that is here, on one model, in turn: a prompt, decoding, several streams, loading, peak memory.

`ik-wheel` is ik_llama.cpp as `pip install` brings it, for any CPU with AVX2, `ik-native` the same release compiled for
this CPU; `-rtr` repacks weights while loading. `openvino-genai` reads the GGUF file, `openvino-int4` is a graph of the
same shape (`peer_openvino.py`). Behind a context (`-d`) there are no streams. An engine that cannot take part is named
with the reason. A turn is one fresh process for one stream, whose peak memory counts, and one for STREAMS; medians of
the rounds are compared.
"""

from __future__ import annotations

import json
import math
import os
import re
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from bench import peer_packages, peer_single, peer_streams
from bench.model_shapes import SHAPES
from bench.peer_tools import Finished, has_tool, our_program, run

STREAMS, STREAM_PROMPT, STREAM_ANSWER = 8, 128, 32
NOT_BUILT = "not built: python bench/peers.py build"


@dataclass(frozen=True)
class Figures:
    """One round of an engine, or medians. Speeds in tokens/s; nan: this engine does not measure it."""

    prefill_tps: float
    decode_tps: float
    streams_tps: float
    load_seconds: float
    peak_rss_bytes: float


@dataclass(frozen=True)
class Engine:
    """One side of the comparison."""

    measure: Callable[[peer_single.Ask], Figures]
    missing: Callable[[peer_single.Ask], str] = lambda _: ""
    """Why it cannot take part; "" where it can."""
    behind: bool = False
    """Whether it can be measured behind a context."""


# -- engines -----------------------------------------------------------------------------------------------------------


def _streams(ask: peer_single.Ask) -> peer_streams.Load:
    return peer_streams.Load(ask.model, STREAM_PROMPT, STREAM_ANSWER, (STREAMS,), ask.threads)


def _figures(done: Finished, streams: float) -> Figures:
    """From the JSON of `ollama-engine bench` or of `peer_child.py`, the last line that a program prints."""
    text = done.stdout.strip()
    result = json.loads(text if text.startswith("{") else text.splitlines()[-1])
    speeds = (result.get("depth") or [result])[0]
    return Figures(speeds["prefill_tps"], speeds["decode_tps"], streams, result["load_seconds"], done.peak_rss_bytes)


def _behind(ask: peer_single.Ask, option: str) -> list[str]:
    return [option, str(ask.depth)] if ask.depth else []


def measure_ours(ask: peer_single.Ask) -> Figures:
    command = [our_program(), "bench", ask.model, "-t", str(ask.threads), "-r", "1", "--json"]
    done = run([*command, "-p", str(ask.prompt), "-n", str(ask.generate), *_behind(ask, "--depth")])
    peer_single.name_lost_threads(json.loads(done.stdout), ask.threads)
    return _figures(done, math.nan if ask.depth else peer_streams.measure_ours(_streams(ask))[STREAMS].decode_tps)


def measure_llama_cpp(ask: peer_single.Ask) -> Figures:
    single = peer_single.measure_peer(ask)
    if ask.depth:
        return Figures(single.prefill_tps, single.decode_tps, math.nan, single.load_seconds, single.peak_rss_bytes)
    ways = (peer_streams.measure_peer(_streams(ask), way) for way in ("--kv-unified", "--no-kv-unified"))
    streams = max(way[STREAMS].decode_tps for way in ways)
    return Figures(single.prefill_tps, single.decode_tps, streams, single.load_seconds, single.peak_rss_bytes)


def measure_package(ask: peer_single.Ask, engine: str, *options: str, library: Path | None = None) -> Figures:
    """An engine of `peer_child.py`."""
    program = [str(peer_packages.PYTHON), str(Path(__file__).with_name("peer_child.py")), engine, ask.model]
    program += ["-t", str(ask.threads), *options]
    added = {"IK_LLAMA_CPP_LIB_PATH": str(library)} if library else {}
    one = run([*program, "-p", str(ask.prompt), "-n", str(ask.generate), *_behind(ask, "-d")], added)
    if ask.depth:
        return _figures(one, math.nan)
    several = [word for word in program if word != "--flash"]  # ik's ends the process where streams share a batch
    several += ["-p", str(STREAM_PROMPT), "-n", str(STREAM_ANSWER), "--streams", str(STREAMS)]
    return _figures(one, _figures(run(several, added), math.nan).decode_tps)


def measure_native(ask: peer_single.Ask, *options: str) -> Figures:
    return measure_package(ask, "ik", "--flash", *options, library=peer_packages.native_library())


def missing_native(_: peer_single.Ask) -> str:
    if peer_packages.native_library() is None:
        return "not built: python bench/peers.py install --native"
    return peer_packages.missing("ik")


def shape_of(ask: peer_single.Ask) -> str:
    """The name in SHAPES that the file's name begins with, as make_model.py's users call them; "" where it is none."""
    file = os.path.basename(ask.model)
    return next((name for name, shape in SHAPES.items() if file.startswith(name) and shape.arch == "llama"), "")


def measure_int4(ask: peer_single.Ask) -> Figures:
    program = [str(peer_packages.PYTHON), str(Path(__file__).with_name("peer_openvino.py"))]
    program += [json.dumps(asdict(SHAPES[shape_of(ask)])), "-t", str(ask.threads)]
    return _figures(run([*program, "-p", str(ask.prompt), "-n", str(ask.generate)]), math.nan)


def missing_int4(ask: peer_single.Ask) -> str:
    if not shape_of(ask):
        return "its graph is built for llama-like shapes of make_model.py, by the file's name: llama-1b-...gguf"
    return peer_packages.missing("openvino")


def _missing_wheel(_: peer_single.Ask) -> str:
    return peer_packages.missing("ik")


ENGINES: Mapping[str, Engine] = {
    "ollama_engine": Engine(measure_ours, behind=True),
    "llama.cpp": Engine(measure_llama_cpp, lambda _: "" if has_tool("llama-bench") else NOT_BUILT, behind=True),
    "ik-native": Engine(measure_native, missing_native, behind=True),
    "ik-native-rtr": Engine(lambda ask: measure_native(ask, "--repack"), missing_native, behind=True),
    "ik-wheel": Engine(lambda ask: measure_package(ask, "ik"), _missing_wheel, behind=True),
    "ik-wheel-rtr": Engine(lambda ask: measure_package(ask, "ik", "--repack"), _missing_wheel, behind=True),
    "xllamacpp": Engine(lambda ask: measure_package(ask, "xllamacpp"), lambda _: peer_packages.missing("xllamacpp")),
    "openvino-genai": Engine(lambda ask: measure_package(ask, "openvino"), lambda _: peer_packages.missing("openvino")),
    "openvino-int4": Engine(measure_int4, missing_int4),
}


# -- comparing ---------------------------------------------------------------------------------------------------------


def compare(ask: peer_single.Ask, repetitions: int, names: Sequence[str]) -> dict[str, Any]:
    """Medians by engine in `engines`; reasons in `left_out`. An engine that fails in a round is left out from then."""
    left_out = {name: reason for name in names if (reason := _missing(name, ask))}
    rounds: dict[str, list[Figures]] = {name: [] for name in names if name not in left_out}
    for i in range(repetitions):
        for name in list(rounds):
            print(f"round {i + 1} of {repetitions}: {name}", file=sys.stderr, flush=True)
            try:
                rounds[name].append(ENGINES[name].measure(ask))
            except SystemExit as error:
                left_out[name] = reason_in(str(error))
                del rounds[name]
    return {
        **asdict(ask), "model": os.path.basename(ask.model), "repetitions": repetitions, "left_out": left_out,
        "engines": {name: asdict(medians(measured)) for name, measured in rounds.items()},
    }  # fmt: skip


def _missing(name: str, ask: peer_single.Ask) -> str:
    """Why an engine cannot take part; "" where it can."""
    engine = ENGINES[name]
    return engine.missing(ask) if engine.behind or not ask.depth else "it is not measured behind a context (-d)"


def medians(measured: Sequence[Figures]) -> Figures:
    return Figures(*(statistics.median(getattr(one, field.name) for one in measured) for field in fields(Figures)))


def reason_in(output: str) -> str:
    """The line that says why a program ended: the last one with an error or an assertion, or simply the last."""
    lines = output.strip().splitlines()
    return next((line for line in reversed(lines) if re.search("assert|error", line, re.IGNORECASE)), lines[-1])


COLUMNS = (
    ("prefill {prompt}, tokens/s", "prefill_tps", 1.0, 1, True),
    ("decode {generate}, tokens/s", "decode_tps", 1.0, 1, True),
    (f"{STREAMS} streams, tokens/s", "streams_tps", 1.0, 1, True),
    ("load, s", "load_seconds", 1.0, 2, False),
    ("peak memory, MiB", "peak_rss_bytes", 2.0**-20, 0, False),
)


def report(result: dict[str, Any]) -> str:
    """Figures by engine. Behind each of a peer's: how many times as good ours is, below 1 where the peer is ahead."""
    titles = [title.format(**result) for title, *_ in COLUMNS]
    lines = [f"| {result['model']} | {' | '.join(titles)} |", f"|---|{'---:|' * len(titles)}"]
    ours = result["engines"].get("ollama_engine")
    for name, figures in result["engines"].items():
        cells = []
        for _, key, unit, digits, more_is_better in COLUMNS:
            value = figures[key]
            if math.isnan(value):
                cells.append("-")
                continue
            cell = f"{value * unit:.{digits}f}"
            if ours and name != "ollama_engine":
                ratio = ours[key] / value if more_is_better else value / ours[key]
                cell += f" ({ratio:.2f})"
            cells.append(cell)
        lines.append(f"| {name} | {' | '.join(cells)} |")
    lines += ["", *(f"- {name} is left out: {reason}" for name, reason in result["left_out"].items())]
    return "\n".join(lines).rstrip()
