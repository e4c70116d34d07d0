"""Every engine that is here, on each model, in turn: a prompt, decoding, several streams, loading, peak memory.

`ik-wheel` is ik_llama.cpp as `pip install` brings it, for any CPU with AVX2, `ik-native` the same release compiled for
this CPU; `-rtr` repacks weights while loading. `openvino-genai` reads the GGUF file, `openvino-int4` is a graph of the
same shape (`peer_openvino.py`). Behind a context (`-d`) there are no streams. An engine that cannot take part is named
with the reason. A turn is one fresh process for one stream, whose peak memory counts, and one for STREAMS; medians of
the rounds are compared. Turns can be kept in a file, from which a later call goes on.
"""

from __future__ import annotations

import json
import math
import os
import re
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
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
    command += ["-p", str(ask.prompt), "-n", str(ask.generate), *_behind(ask, "--depth")]
    done = peer_single.run_ours(command, ask.threads)
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


@dataclass
class Turns:
    """What was measured, and why engines are left out: by the file's name, then by engine."""

    setting: dict[str, Any]
    """Of all turns."""
    measured: dict[str, dict[str, list[Figures]]] = field(default_factory=dict)
    left_out: dict[str, dict[str, str]] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def read(cls, path: Path, setting: dict[str, Any]) -> Turns:
        """Those that an earlier call kept; none where there is no such file."""
        if not path.exists():
            return cls(setting)
        kept = json.loads(path.read_text(encoding="utf-8"))
        if kept["setting"] != setting:
            raise SystemExit(f"peers: {path} has turns of {kept['setting']}, not of {setting}; name another file")
        measured = {
            model: {name: [Figures(**one) for one in turns] for name, turns in engines.items()}
            for model, engines in kept["measured"].items()
        }
        return cls(setting, measured, kept["left_out"])

    def write(self, path: Path) -> None:
        new = path.with_name(path.name + ".new")
        new.write_text(json.dumps(self.to_json(), indent=1), encoding="utf-8")
        new.replace(path)


def compare(
    asks: Sequence[peer_single.Ask], repetitions: int, names: Sequence[str], kept: Path | None = None,
    seconds: float = math.inf,
) -> Turns:  # fmt: skip
    """`repetitions` rounds; in each, every model, and with it every engine of `names`.

    An engine that fails in a round is left out from then. Every turn is written to `kept`, and those that are there
    already are not measured again. No turn begins after `seconds`.
    """
    setting = {key: value for key, value in asdict(asks[0]).items() if key != "model"}
    turns, end = Turns.read(kept, setting) if kept else Turns(setting), time.monotonic() + seconds
    for i in range(repetitions):
        for ask in asks:
            model = os.path.basename(ask.model)
            measured, left_out = turns.measured.setdefault(model, {}), turns.left_out.setdefault(model, {})
            for name in names:
                if name in left_out or len(measured.setdefault(name, [])) > i:
                    continue
                if time.monotonic() > end:
                    return turns
                if reason := _missing(name, ask):
                    left_out[name] = reason
                    continue
                print(f"round {i + 1} of {repetitions}: {model}, {name}", file=sys.stderr, flush=True)
                try:
                    measured[name].append(ENGINES[name].measure(ask))
                except SystemExit as error:
                    left_out[name] = reason_in(str(error))
                if kept:
                    turns.write(kept)
    return turns


def _missing(name: str, ask: peer_single.Ask) -> str:
    """Why an engine cannot take part; "" where it can."""
    engine = ENGINES[name]
    return engine.missing(ask) if engine.behind or not ask.depth else "it is not measured behind a context (-d)"


def medians(measured: Sequence[Figures]) -> Figures:
    return Figures(*(statistics.median(getattr(one, key.name) for one in measured) for key in fields(Figures)))


def reason_in(output: str) -> str:
    """The line that says why a program ended: the last one with an error or an assertion, or simply the last."""
    lines = output.strip().splitlines()
    return next((line for line in reversed(lines) if re.search("assert|error", line, re.IGNORECASE)), lines[-1])


# -- reporting ---------------------------------------------------------------------------------------------------------

OURS = "ollama_engine"
TABLES = (
    ("Prompts of {prompt} tokens, tokens/s", "prefill_tps", 1.0, 0, True),
    ("Decoding {generate} tokens, tokens/s", "decode_tps", 1.0, 1, True),
    (f"{STREAMS} streams decoding, tokens/s of all", "streams_tps", 1.0, 0, True),
    ("Loading, s", "load_seconds", 1.0, 2, False),
    ("Peak memory of one stream, MiB", "peak_rss_bytes", 2.0**-20, 0, False),
)


def report(turns: Turns) -> str:
    """A table for each figure: files down, engines across. The last column is below 1 where a peer is ahead."""
    there = {
        model: {name: found for name, found in engines.items() if found and name not in turns.left_out[model]}
        for model, engines in turns.measured.items()
    }
    counts = sorted({len(found) for engines in there.values() for found in engines.values()})
    rounds = " to ".join(map(str, dict.fromkeys((*counts[:1], *counts[-1:]))))
    counted = f"medians of {rounds} rounds in turn, {turns.setting['threads']} threads"
    shown = {model: {name: medians(found) for name, found in engines.items()} for model, engines in there.items()}
    names = list(dict.fromkeys(name for engines in shown.values() for name in engines))
    tables = [_table(title.format(**turns.setting), shown, names, *form) for title, *form in TABLES]
    reasons = [
        f"- {model}: {name} is left out: {reason}"
        for model, left_out in turns.left_out.items()
        for name, reason in left_out.items()
    ]
    return "\n".join([counted, *tables, "", *reasons]).rstrip()


def _table(
    title: str, shown: Mapping[str, Mapping[str, Figures]], names: Sequence[str], key: str, unit: float, digits: int,
    more_is_better: bool,
) -> str:  # fmt: skip
    lines = [f"\n{title}:\n", f"| file | {' | '.join(names)} | over the best |", f"|---|{'---:|' * (len(names) + 1)}"]
    for model, engines in shown.items():
        values = {name: getattr(found, key) * unit for name, found in engines.items()}
        there = {name: value for name, value in values.items() if not math.isnan(value)}
        cells = [f"{there[name]:,.{digits}f}" if name in there else "-" for name in names]
        ours, peers = there.pop(OURS, math.nan), there.values()
        ratio = math.nan
        if peers:
            ratio = ours / max(peers) if more_is_better else min(peers) / ours
        lines.append(f"| {model} | {' | '.join(cells)} | {'-' if math.isnan(ratio) else f'**{ratio:.2f}**'} |")
    return "\n".join(lines)
