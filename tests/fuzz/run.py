"""Coverage-guided fuzzing: `python -m tests.fuzz.run --minutes 10 [TARGET ...]`, or `make fuzz`.

Each target runs libFuzzer (by atheris) in a process of its own, which counts branches of our Python, and of our C
and Cython where clang has built them with `OLLAMA_ENGINE_SANITIZE=address,fuzzer-no-link`. What was found lies in
`.fuzz/TARGET/found-*`: mend it, and add it to `tests/fuzz/corpus/TARGET`, which the tests replay.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from tests.fuzz.targets import NAMES

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"of {', '.join(NAMES)}; all without one")
    parser.add_argument("--minutes", type=float, default=10, help="for all targets together")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--merge", action="store_true", help="keep what adds coverage, as tests/fuzz/corpus/TARGET")
    args = parser.parse_args()
    targets = args.targets or list(NAMES)
    unknown = sorted(set(targets) - set(NAMES))
    if unknown:
        parser.error(f"{', '.join(unknown)}: the targets are {', '.join(NAMES)}")
    failed = [name for name in targets if not _fuzz(name, args, 60 * args.minutes / len(targets))]
    if failed:
        print(f"found something in {', '.join(failed)}: see .fuzz/TARGET/found-*")
    return 1 if failed else 0


def _fuzz(name: str, args: argparse.Namespace, seconds: float) -> bool:
    """Run one target. Returns whether nothing was found."""
    work, kept = ROOT / ".fuzz" / name, FOLDER / "corpus" / name
    (work / "corpus").mkdir(parents=True, exist_ok=True)
    kept.mkdir(parents=True, exist_ok=True)
    if args.merge:
        flags = ["-merge=1", str(kept), str(work / "corpus")]
    else:
        flags = [f"-max_total_time={max(1, round(seconds))}", f"-seed={args.seed}", str(work / "corpus"), str(kept)]
    print(f"== {name}: {seconds:.0f} s", flush=True)
    command = [sys.executable, "-m", "tests.fuzz.child", name, f"-artifact_prefix={work}/found-", "-timeout=30",
               "-rss_limit_mb=4096", "-max_len=16384", "-print_final_stats=1", "-len_control=0", *flags]  # fmt: skip
    environment = {**os.environ, "LD_PRELOAD": _runtime(), "PYTHONMALLOC": "malloc",
                   "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1"}  # fmt: skip
    return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode == 0


def _runtime() -> str:
    """The libFuzzer of atheris with AddressSanitizer, which instrumented extension modules call."""
    spec = find_spec("atheris")
    if spec is None or spec.origin is None:
        raise SystemExit("atheris is not installed: pip install ollama_engine[fuzz]")
    return str(Path(spec.origin).parents[1] / "asan_with_fuzzer.so")


if __name__ == "__main__":
    raise SystemExit(main())
