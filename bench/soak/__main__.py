"""`python -m bench.soak --minutes 10`, or `make soak MINUTES=10`: random clients of two engines, for a while.

Threads and asyncio tasks ask the demo models for answers, streams, chats, embeddings, images, formats and sessions;
they cancel, time out, fork, save and load, and load engines of their own. Every answer is compared with the one that
the same question got alone. Meanwhile memory, descriptors and threads are measured. Exits with 1 where an answer
differs, a call raises what it should not, or something grew. Linux only.
"""

from __future__ import annotations

import argparse
import gc
import json
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path

from bench.soak.clients import Clients, Tally
from bench.soak.questions import conversations, questions, scripts
from bench.soak.resources import Sample, Watch, draw, faults_of, sample
from ollama_engine import Engine, demo


def soak(
    seconds: float, threads: int, tasks: int, seed: int, report: Callable[[Sample], None], *,
    interval: float = 1.0, cpus: int | None = None,
) -> tuple[Tally, list[Sample], list[str]]:  # fmt: skip
    """Run the clients. Returns what happened, the samples, and what is wrong: nothing, where all is well."""
    tally = Tally()
    with (
        Engine(demo.path(), num_ctx=512, parallel=4, max_queue=64, threads=cpus) as text,
        Engine(demo.vision_path(), num_ctx=512, parallel=2, max_queue=64, threads=cpus) as vision,
    ):
        clients = Clients(questions(text, vision), conversations(vision), scripts(text), tally)
        clients.learn()
        watch = Watch(lambda: sum(tally.calls.values()), interval, report)
        before = sample(watch.start_time, 0)
        lives = [threading.Thread(target=clients.run, args=(seed + i,)) for i in range(threads)]
        lives.append(threading.Thread(target=clients.run_loop, args=(seed, tasks)))
        for life in (*lives, watch):
            life.start()
        time.sleep(seconds)
        clients.stop.set()
        for life in lives:
            life.join()
        watch.stop()
        gc.collect()
        after = sample(watch.start_time, sum(tally.calls.values()))
        shutil.rmtree(clients.folder)
    return tally, watch.samples, [*tally.faults, *faults_of(watch.samples, before, after)]


def show(tally: Tally, samples: list[Sample], faults: list[str], seconds: float) -> None:
    print(f"\n{'call':<28}{'calls':>9}{'compared':>10}{'cut off':>9}")
    for kind, count in sorted(tally.calls.items()):
        print(f"{kind:<28}{count:>9}{tally.compared[kind]:>10}{tally.cut[kind]:>9}")
    total = sum(tally.calls.values())
    print(f"{'all':<28}{total:>9}{sum(tally.compared.values()):>10}{sum(tally.cut.values()):>9}")
    print(f"{total / seconds:.1f} calls/s for {seconds / 60:.1f} minutes")
    for name in ("rss_mib", "descriptors", "threads"):
        values = [getattr(s, name) for s in samples]
        first, last = values[: len(values) // 4], values[-(len(values) // 4 or 1) :]
        if first:
            print(f"{name:<12} first quarter {min(first):.0f}..{max(first):.0f}, last {min(last):.0f}..{max(last):.0f}")
    print(f"\n{len(faults)} faults")
    for fault in faults[:20]:
        print(fault)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--threads", type=int, default=8, help="clients that are threads")
    parser.add_argument("--tasks", type=int, default=8, help="clients that are asyncio tasks of one loop")
    parser.add_argument("--cpus", type=int, help="threads that each engine computes with")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write samples and counts here")
    parser.add_argument("--picture", type=Path, help="draw the samples here (needs matplotlib, the extra `plot`)")
    args = parser.parse_args()

    def report(found: Sample) -> None:
        if round(found.seconds) % 30 == 0:
            print(f"{found.seconds:6.0f} s  {found.rss_mib:7.1f} MiB  {found.descriptors:3} descriptors  "
                  f"{found.threads:3} threads  {found.answers:7} calls", flush=True)  # fmt: skip

    begin = time.monotonic()
    tally, samples, faults = soak(60 * args.minutes, args.threads, args.tasks, args.seed, report, cpus=args.cpus)
    show(tally, samples, faults, time.monotonic() - begin)
    if args.json:
        args.json.write_text(json.dumps({"calls": tally.calls, "compared": tally.compared, "cut": tally.cut,
                                         "faults": faults, "samples": samples}), encoding="utf-8")  # fmt: skip
    if args.picture:
        draw(samples, args.picture)
    return 1 if faults else 0


if __name__ == "__main__":
    raise SystemExit(main())
