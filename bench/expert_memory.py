"""A mixture of experts that is larger than memory: tokens/s in a control group that leaves it less than it needs.

    python bench/expert_memory.py qwen3-moe-q4_k_m.gguf --shares 0.75 0.5         # ours, mapped, llama.cpp
    python bench/expert_memory.py qwen3-moe-q4_k_m.gguf --skew 0.5 --stream 8 --only read

Needs root and version 1 of control groups (a folder below /sys/fs/cgroup/memory). Experts get what the group leaves
beside the other weights and BESIDE. Ours decodes the random tokens twice,
and the second time counts, since the first fills the memory; llama-bench warms up with one token. Files of random
weights are made with rows that repeat, so that all tokens choose the same experts: a copy gets random embeddings and
routers. `--skew` s multiplies the router's row of the expert of rank r by r**-s, in another order for each layer.
`--stream` multiplies the embeddings: the larger they are beside what a layer adds, the more alike is what two layers
read, and the more often is the next layer's choice guessed right.
Beside tokens/s stand, of the experts that a token uses, the share that was read from the disk when it was chosen and
the share read ahead, the share of the guesses that were right, and the bytes read for each token.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for when this file is run as a program

from bench.peer_tools import has_tool, tool
from ollama_engine import nn
from ollama_engine.config import EngineConfig
from ollama_engine.evaluate.measure import decode_seconds, random_tokens
from ollama_engine.ml.gguf.gguf_file import GGUFFile
from ollama_engine.ml.weights.weight_plan import has_experts
from ollama_engine.runner.load.loading import load

GROUPS = Path("/sys/fs/cgroup/memory")
BLOCK_OF_Q6_K = 210
PROGRAM = 160 << 20
"""Bytes for the cache, graphs, and the program, which take 150 MiB with room."""
BESIDE = 192 << 20
"""Bytes that experts leave to those and to the system."""


def varied(source: Path, copy: Path, skew: float, stream: float) -> None:
    """A copy of a file of random weights whose tokens choose different experts."""
    shutil.copy(source, copy)
    rng = np.random.default_rng(1)
    with GGUFFile(source) as gguf:
        data = np.memmap(copy, mode="r+", dtype=np.uint8)
        for name, info in gguf.tensors.items():
            part = data[info.offset : info.offset + info.nbytes]
            if name == "token_embd.weight":
                blocks = part.reshape(-1, BLOCK_OF_Q6_K)  # codes, 16 scales, one factor
                blocks[:, :192] = rng.integers(0, 256, (len(blocks), 192), dtype=np.uint8)
                blocks[:, 192:208] = 32
                blocks[:, 208:] = np.frombuffer(np.float16(0.001 * stream).tobytes(), np.uint8)
            elif name.endswith("ffn_gate_inp.weight"):
                length, experts = info.shape
                ranks = 1 + rng.permutation(experts).astype(np.float32)
                rows = rng.standard_normal((experts, length), dtype=np.float32) / np.sqrt(length)
                part.view(np.float32)[:] = (rows * ranks[:, None] ** -skew).ravel()
        data.flush()


@contextmanager
def control_group(nbytes: int) -> Iterator[Path]:
    """A group that processes can be put into, with this limit."""
    group = GROUPS / f"expert-memory-{os.getpid()}"
    group.mkdir()
    try:
        (group / "memory.limit_in_bytes").write_text(str(nbytes))
        yield group
    finally:
        with suppress(OSError):  # its page cache
            (group / "memory.force_empty").write_text("1")
        group.rmdir()


def run_in(group: Path, command: Sequence[str], path: Path) -> str:
    """The output of a program that begins with nothing of the file in memory."""
    descriptor = os.open(path, os.O_RDONLY)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)
    joined = ["sh", "-c", 'echo $$ > "$0" && exec "$@"', str(group / "cgroup.procs"), *command]
    done = subprocess.run(joined, capture_output=True, text=True, check=False)
    if done.returncode:
        return json.dumps({"failed": f"ended with {done.returncode} {done.stderr[-400:]}"})
    return done.stdout


def ours(path: str, n_tokens: int, cache_bytes: int | None, *, ahead: bool) -> dict[str, float]:
    """Tokens/s of this process, of the second time."""
    if not ahead:
        nn.Mixture.choose = lambda self, x, o: self.route(x, o)  # type: ignore[method-assign]
    config = EngineConfig(num_ctx=1024, batch_size=64, parallel=1, threads=2, draft="off",
                          expert_cache_bytes=cache_bytes)  # fmt: skip
    loaded = load(path, config)
    try:
        before, seconds = Counter[str](), 0.0
        for seed in range(2):
            if loaded.weights.experts is not None:
                before = Counter(loaded.weights.experts.counts())
            tokens = random_tokens(loaded.model.n_vocab, 1, n_tokens, seed)
            seconds = decode_seconds(loaded.executor, loaded.cache, tokens)
        result = {"tokens/s": n_tokens / seconds}
        if loaded.weights.experts is not None:
            n = Counter(loaded.weights.experts.counts()) - before
            result |= {"chosen": n["misses"] / n["uses"], "ahead": n["ahead"] / n["uses"],
                       "right": n["guessed_right"] / max(1, n["guesses"]),
                       "MB": n["bytes_read"] / n_tokens / 1e6}  # fmt: skip
        return result
    finally:
        loaded.close()


def llama_cpp_command(path: Path, n_tokens: int) -> list[str]:
    """Weights mapped: repacked copies, its default, are memory that cannot be given back, and it is killed."""
    return [str(tool("llama-bench")), "-m", str(path), "-p", "0", "-n", str(n_tokens), "-r", "1", "-t", "2",
            "--load-mode", "mmap", "--repack", "0", "-o", "json"]  # fmt: skip


def measured(path: Path, n_tokens: int, share: float, only: Sequence[str]) -> Iterator[str]:
    """A line for each program."""
    child = [sys.executable, __file__, str(path), "--tokens", str(n_tokens), "--child"]
    limit = int((path.stat().st_size + PROGRAM) * share)
    with GGUFFile(path) as gguf:
        others = sum(info.nbytes for info in gguf.tensors.values() if not has_experts(info))
    with control_group(limit) as group:
        read = [*child, str(limit - others - BESIDE)]
        commands = {"read": read, "not ahead": [*read, "--not-ahead"], "mapped": [*child, "0"]}
        if has_tool("llama-bench"):
            commands["llama.cpp"] = llama_cpp_command(path, n_tokens)
        for name, command in commands.items():
            if only and name not in only:
                continue
            said = json.loads(run_in(group, command, path))
            if name == "llama.cpp" and isinstance(said, list):
                said = {"tokens/s": said[0]["avg_ts"]}
            shown = ", ".join(
                f"{key} {value:.3g}" if isinstance(value, float) else value for key, value in said.items()
            )
            yield f"{share:>4.0%}  {name:9}  {shown}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--shares", type=float, nargs="*", default=[0.75, 0.5])
    parser.add_argument("--skew", type=float, default=0.0)
    parser.add_argument("--stream", type=float, default=1.0)
    parser.add_argument("--tokens", type=int, default=100)
    parser.add_argument("--only", nargs="*", default=[], help="of: read, not ahead, mapped, llama.cpp")
    parser.add_argument("--as-is", action="store_true", help="the file is such a copy")
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--not-ahead", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child is not None:
        figures = ours(str(options.file), options.tokens, options.child or None, ahead=not options.not_ahead)
        print(json.dumps(figures))
        return
    with TemporaryDirectory(dir=options.file.parent) as folder:
        path = options.file if options.as_is else Path(folder) / "varied.gguf"
        if not options.as_is:
            varied(options.file, path, options.skew, options.stream)
        for share in options.shares:
            for line in measured(path, options.tokens, share, options.only):
                print(line, flush=True)


if __name__ == "__main__":
    main()
