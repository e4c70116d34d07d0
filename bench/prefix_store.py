"""What does a restart cost? The first token of a long prompt: computed, from memory, and from the prefix store.

    python bench/prefix_store.py FILE.gguf -p 8000 -t 2
    python bench/prefix_store.py FILE.gguf -p 3500 -t 2 --projector MMPROJ.gguf    # with a picture behind the tokens
    python bench/prefix_store.py FILE.gguf -p 8000 -t 2 --peer                     # llama-server's slot files, too

Before a picture llama-server gets as many letters, of which it may make another number of tokens.
"Disk" is a new engine, or a new server whose slot is restored first. Files are in the system's cache of pages
unless `--cold` has that dropped (as root). Then one answer is decoded alone, and beside the writing of other prompts'
blocks: what do copies between steps take, and how long are the gaps between tokens? `--folder` keeps files, so that
`--stages` can be measured in several calls.
"""

from __future__ import annotations

import argparse
import base64
import io
import json
import statistics
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from PIL import Image

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for when this file is run as a program

from bench.servers import Setting, serving
from ollama_engine import Engine, Media, SamplingParams, Tokens
from ollama_engine.runner.core.prefix_writes import PrefixWrites

STAGES = ("computed", "disk", "steps")
PEER_STAGES = ("peer-computed", "peer-disk")
ONE = SamplingParams(temperature=0, max_tokens=1)
SLOT = "prompt.slot"


def tokens(n: int, offset: int = 0) -> list[int]:
    return [int(token) for token in np.random.default_rng(offset).integers(100, 250, n)]


def picture() -> Any:
    return np.random.default_rng(1).integers(0, 256, (896, 896, 3), dtype=np.uint8)


def prompt(args: argparse.Namespace) -> Any:
    if args.projector is None:
        return tokens(args.p)
    return [Tokens(tokens(args.p)), Media(picture()), Tokens(tokens(20, 2))]


def opened(args: argparse.Namespace) -> Engine:
    return Engine(args.model, projector=args.projector, num_ctx=args.p + 1024, parallel=2, threads=args.t, draft="off",
                  prefix_store=args.folder)  # fmt: skip


def timed(engine: Engine, asked: Any) -> str:
    begin = time.perf_counter()
    usage = engine.generate(asked, ONE).usage
    seconds = time.perf_counter() - begin
    return f"{seconds:7.3f} s to the first token, {usage.cached_tokens} of {usage.prompt_tokens} tokens cached"


def computed(args: argparse.Namespace) -> None:
    with opened(args) as engine:
        print("computed     ", timed(engine, prompt(args)), flush=True)
        print("memory       ", timed(engine, prompt(args)))
        begin = time.perf_counter()
    stored = sum(path.stat().st_size for path in Path(args.folder).rglob("*") if path.is_file())
    print(f"stored        {stored / 1e6:7.0f} MB; closing took {time.perf_counter() - begin:.2f} s")


def disk(args: argparse.Namespace) -> None:
    with opened(args) as engine:
        print("disk         ", timed(engine, prompt(args)))


def gaps(engine: Engine, n: int) -> list[float]:
    """Milliseconds between the tokens of an answer of one letter: others may wait for the rest of a character."""
    at, letter = [], engine.tokenize("a")[-1]
    for _ in engine.submit([100, 200, 130], SamplingParams(temperature=0, logit_bias={letter: 100.0}, max_tokens=n)):
        at.append(time.perf_counter())
    return [float(gap) for gap in np.diff(at) * 1e3]


def steps(args: argparse.Namespace) -> None:
    """What the writing of blocks takes from the steps of another answer."""
    copies, of_cpu, serve = list[float](), list[float](), PrefixWrites.serve_gap

    def timed_copy(self: PrefixWrites, *, alone: bool) -> None:
        begin, cpu, at = time.perf_counter(), time.thread_time(), self._next_copy_at
        serve(self, alone=alone)
        if self._next_copy_at != at and not alone:
            copies.append(1e3 * (time.perf_counter() - begin))
            of_cpu.append(1e3 * (time.thread_time() - cpu))
            if copies[-1] > 1:
                print(f"a copy of {copies[-1]:.2f} ms, {of_cpu[-1]:.2f} of CPU time, began at {begin:.6f}")

    with patch.object(PrefixWrites, "serve_gap", timed_copy), opened(args) as engine:
        engine.generate([100], ONE)
        alone, beside = gaps(engine, 60), list[float]()
        for number in range(args.prompts):
            engine.generate(tokens(min(args.p, 1024), 10 + number), ONE)
            beside += gaps(engine, 60)
        n = engine.metrics.prefix_store_written_tokens
    for name, each in (("alone", alone), (f"while {n} tokens were stored", beside)):
        print(f"steps {name}: median {statistics.median(each):.2f}, longest {max(each):.2f} ms")
    for name, each in (("took", copies), ("CPU time", of_cpu)) if copies else ():
        few = np.percentile(each, [50, 90, 99])
        print(f"{len(each)} copies between steps, {name}: median {few[0]:.2f}, 90 % {few[1]:.2f}, 99 % {few[2]:.2f}, "
              f"longest {max(each):.2f} ms")  # fmt: skip


# -- llama-server ------------------------------------------------------------------------------------------------------


@contextmanager
def peer(args: argparse.Namespace) -> Iterator[int]:
    options = ["--slot-save-path", f"{args.folder}/"]
    if args.projector is not None:
        options += ["--mmproj", args.projector]
    with serving("llama-server", Setting(Path(args.model), 1, args.p + 1024, args.t, options)) as port:
        yield port


def post(port: int, path: str, body: dict[str, Any]) -> Any:
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=600) as answer:
        return json.load(answer)


def peer_prompt(port: int, args: argparse.Namespace) -> Any:
    if args.projector is None:
        return tokens(args.p)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/props", timeout=60) as answer:
        marker = json.load(answer)["media_marker"]
    before, behind = ("".join(chr(97 + token % 26) for token in part) for part in (tokens(args.p), tokens(20, 2)))
    file = io.BytesIO()
    Image.fromarray(picture()).save(file, "png")
    data = base64.b64encode(file.getvalue()).decode()
    return {"prompt_string": before + marker + behind, "multimodal_data": [data]}


def peer_first(port: int, args: argparse.Namespace, restore: bool = False) -> str:
    asked = {"prompt": peer_prompt(port, args), "n_predict": 1, "cache_prompt": True, "id_slot": 0}
    begin = time.perf_counter()
    if restore:
        post(port, "/slots/0?action=restore", {"filename": SLOT})
    said = post(port, "/completion", asked)
    seconds = time.perf_counter() - begin
    return f"{seconds:7.3f} s to the first token, {said['timings']['prompt_n']} tokens computed"


def peer_computed(args: argparse.Namespace) -> None:
    with peer(args) as port:
        print("llama-server, computed", peer_first(port, args), flush=True)
        print("llama-server, memory  ", peer_first(port, args), flush=True)
        post(port, "/slots/0?action=save", {"filename": SLOT})
    print(f"llama-server, stored   {Path(args.folder, SLOT).stat().st_size / 1e6:.0f} MB")


def peer_disk(args: argparse.Namespace) -> None:
    with peer(args) as port:
        print("llama-server, disk    ", peer_first(port, args, restore=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("-p", type=int, default=8000, metavar="TOKENS", help="length of the prompt")
    parser.add_argument("-t", type=int, default=2, metavar="THREADS")
    parser.add_argument("--projector", metavar="FILE", help="ask with a picture behind the tokens")
    parser.add_argument("--prompts", type=int, default=3, help="whose blocks are written beside an answer")
    parser.add_argument("--cold", action="store_true", help="drop the system's cache of pages before reading")
    parser.add_argument("--peer", action="store_true", help="llama-server, too")
    parser.add_argument("--stages", nargs="+", choices=(*STAGES, *PEER_STAGES), help="these only")
    parser.add_argument("--folder", help="of the files, which stay there")
    args = parser.parse_args()
    stages = {
        "computed": computed,
        "disk": disk,
        "steps": steps,
        "peer-computed": peer_computed,
        "peer-disk": peer_disk,
    }
    with tempfile.TemporaryDirectory() as temporary:
        args.folder = args.folder or temporary
        for name in args.stages or (*STAGES, *(PEER_STAGES if args.peer else ())):
            if args.cold:
                Path("/proc/sys/vm/drop_caches").write_text("1")
            stages[name](args)


if __name__ == "__main__":
    main()
