"""Many chats at once over HTTP, asked by llama-benchy: this package's server beside llama.cpp's, on the same file.

    python bench/serving.py                                        # SmolLM2 135M, 1 to 64 clients; a table
    python bench/serving.py --shared 8000 --clients 16             # one context of 8,000 tokens, 16 chats behind it
    python bench/serving.py --shared 8000 --clients 16 --warm      # one chat behind it, then 16 at once
    python bench/serving.py MODEL.gguf --clients 1 8 --rounds 5 --json serving.json

Each client sends one chat, all at the same moment: prompts of --prompt tokens that share nothing, answers of --answer.
Servers take turns in rounds, each started anew, with a slot for each client. Clients, llama-benchy and the server share
the machine's CPUs. A peer that is not here is named with its reason: `bench/peers.py build` and `install` bring them.
With --shared each server is asked twice: the context is new to it, and it has it cached. With --warm one client asks
first. Then llama-server's slots get what that one's holds by a slot file, since no other way has them share it.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for when this file is run as a program

from bench import benchy, peer_packages, servers
from bench.real_model import real_model

TEMPLATE = 112
"""Room of a chat for its template, and for a prompt that gets longer than asked."""


@dataclass(frozen=True)
class Row:
    """One server under one load, all rounds together: medians of speeds, and quantiles of all requests' times.

    Times are in milliseconds, but `seconds`.
    """

    server: str
    clients: int
    prompt_tps: float
    answer_tps: float
    seconds: float
    first_p50: float
    first_p99: float
    token_p50: float
    token_p99: float
    gap_p99: float
    success: float
    error: str
    note: str = ""


def row(server: str, clients: int, seen: Sequence[benchy.Seen], note: str = "") -> Row:
    first, per_token, gaps = (sorted(v for s in seen for v in getattr(s, n)) for n in ("first", "per_token", "gaps"))
    errors = [error for s in seen for error in s.errors]
    return Row(
        server, clients, *(_median(getattr(s, name) for s in seen) for name in ("prompt_tps", "answer_tps", "seconds")),
        *(1e3 * quantile(values, q) for values in (first, per_token) for q in (0.5, 0.99)), 1e3 * quantile(gaps, 0.99),
        1 - len(errors) / max(1, sum(s.requests for s in seen)), errors[0] if errors else "", note,
    )  # fmt: skip


def _median(values: Iterable[float]) -> float:
    there = [value for value in values if not math.isnan(value)]
    return statistics.median(there) if there else math.nan


def quantile(ordered: Sequence[float], q: float) -> float:
    """The smallest value that a share `q` does not exceed; nan of none."""
    return ordered[max(0, math.ceil(q * len(ordered)) - 1)] if ordered else math.nan


def measure(args: argparse.Namespace, names: Sequence[str]) -> list[Row]:
    seen: dict[tuple[str, int], list[benchy.Seen]] = {}
    with tempfile.TemporaryDirectory() as temp:
        folder = Path(temp)
        benchy.write_tokenizer(args.model, folder)
        for i in range(args.rounds):
            for clients in args.clients:
                for name in names:
                    print(f"round {i + 1} of {args.rounds}: {name}, {clients} clients", file=sys.stderr, flush=True)
                    files = ("--slot-save-path", str(folder)) if args.warm and name == "llama-server" else ()
                    setting = servers.Setting(args.model, clients, args.num_ctx, args.threads, files)
                    ask = benchy.Ask(clients, args.prompt, args.answer, args.shared)
                    with servers.serving(name, setting) as port:
                        found = asked(args, name, port, folder, ask)
                    seen.setdefault((name, clients), []).extend(found)
    found = sorted(seen.items(), key=lambda item: item[0][1])
    if not args.shared:
        return [row(name, clients, runs) for (name, clients), runs in found]
    rows: list[Row] = []
    for (name, clients), runs in found:
        rows += [row(name, 1 if args.warm else clients, runs[::2], "new"), row(name, clients, runs[1::2], "cached")]
    return rows


def asked(args: argparse.Namespace, name: str, port: int, folder: Path, ask: benchy.Ask) -> list[benchy.Seen]:
    model = args.model.stem
    if not args.warm:
        return benchy.run(port, model, folder, ask, 2 if args.shared else 1)
    first = benchy.run(port, model, folder, replace(ask, clients=1), 1)
    servers.share_prefix(name, port, ask.clients)
    return first + benchy.run(port, model, folder, ask, 1)


COLUMNS: tuple[tuple[str, Callable[[Row], str]], ...] = (
    ("clients", lambda one: f"{one.clients} {one.note}".rstrip()),
    ("server", lambda one: one.server),
    ("prompts, tokens/s", lambda one: "-" if math.isnan(one.prompt_tps) else f"{one.prompt_tps:,.0f}"),
    ("answers, tokens/s", lambda one: f"{one.answer_tps:,.0f}"),
    ("all, s", lambda one: f"{one.seconds:.2f}"),
    ("first token p50 / p99, ms", lambda one: f"{one.first_p50:,.0f} / {one.first_p99:,.0f}"),
    ("per token p50 / p99, ms", lambda one: f"{one.token_p50:,.1f} / {one.token_p99:,.1f}"),
    ("longest pause p99, ms", lambda one: f"{one.gap_p99:,.0f}"),
    ("success", lambda one: f"{one.success:.0%}"),
)


def table(rows: Sequence[Row], left_out: dict[str, str]) -> str:
    titles = [title for title, _ in COLUMNS]
    lines = [f"| {' | '.join(titles)} |", f"|{'---:|' * len(titles)}"]
    lines += [f"| {' | '.join(cell(one) for _, cell in COLUMNS)} |" for one in rows]
    lines += ["", *(f"- {one.server}, {one.clients} clients: {one.error}" for one in rows if one.error)]
    return "\n".join([*lines, *(f"- {name} is left out: {reason}" for name, reason in left_out.items())]).rstrip()


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("model", type=Path, nargs="?", help="a GGUF file; SmolLM2 135M by default")
    made.add_argument("--clients", type=int, nargs="+", default=[1, 4, 16, 64])
    made.add_argument("--prompt", type=int, default=256, metavar="TOKENS")
    made.add_argument("--answer", type=int, default=48, metavar="TOKENS")
    made.add_argument("--shared", type=int, default=0, metavar="TOKENS", help="that all prompts begin with")
    made.add_argument("--warm", action="store_true", help="with --shared: one client asks before all others")
    made.add_argument("--num-ctx", type=int, help="of each chat; as long as it takes by default")
    made.add_argument("--threads", type=int, default=os.cpu_count() or 1, help="of llama.cpp; ours takes all CPUs")
    made.add_argument("--rounds", type=int, default=3)
    made.add_argument("--only", nargs="+", choices=servers.NAMES, default=list(servers.NAMES))
    made.add_argument("--json", type=Path, metavar="FILE", help="keep the figures; bench/serving_picture.py draws them")
    return made


def main(arguments: list[str] | None = None) -> None:
    args = parser().parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("serving: terminated"))  # which ends the server, too
    if reason := peer_packages.missing("benchy"):
        raise SystemExit(f"serving: llama-benchy is not here ({reason}); python bench/peers.py install")
    if args.warm and not args.shared:
        raise SystemExit("serving: --warm is for --shared")
    args.model = args.model or real_model()
    args.num_ctx = args.num_ctx or args.shared + args.prompt + args.answer + TEMPLATE
    left_out = {name: reason for name in args.only if (reason := servers.missing(name))}
    rows = measure(args, [name for name in args.only if name not in left_out])
    print(table(rows, left_out))
    if args.json:
        args.json.write_text(json.dumps([asdict(one) for one in rows], indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
