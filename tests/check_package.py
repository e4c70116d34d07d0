"""Build the sdist, a wheel from it for old Linux, and run it where no source is left: `make check-package`.

Too slow for the test suite; .ci/run calls it. ccache makes it a matter of a minute.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from wheels import build, check, old_symbols  # noqa: E402 (beside this folder)


def run(*command: str | Path, cwd: Path, **env: str) -> str:
    """Run a command that must succeed; its output."""
    print("+", *command, flush=True)
    done = subprocess.run(
        [str(c) for c in command], cwd=cwd, env={**os.environ, **env}, check=False, text=True, capture_output=True
    )
    if done.returncode:
        raise SystemExit(f"{done.stdout}{done.stderr}ended with {done.returncode}")
    return done.stdout


def main() -> None:
    """Sdist, wheel, install, run."""
    with tempfile.TemporaryDirectory() as folder:
        temp = Path(folder)
        script = "from scikit_build_core.build import build_sdist; import sys; print(build_sdist(sys.argv[1]))"
        sdist = temp / run(sys.executable, "-c", script, temp, cwd=ROOT).split()[-1]
        # The pinned sources are in the build tree already; the sdist itself holds none.
        ggml = next((ROOT / "build").glob("*/ggml-source"))
        old_symbols.make(temp / "old")
        run(sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-w", temp, sdist,
            f"--config-settings=cmake.define.OLLAMA_ENGINE_GGML_SOURCE={ggml}",
            f"--config-settings=cmake.define.OLLAMA_ENGINE_OLD_SYMBOLS={temp / 'old'}", cwd=temp)  # fmt: skip
        wheel = build.audited(next(temp.glob("*.whl")), temp / "audited")
        check.main([str(wheel)])
        venv.create(temp / "venv", with_pip=True)
        run(temp / "venv/bin/python", "-m", "pip", "install", "--quiet", wheel, cwd=temp)
        sdist.unlink()
        wheel.unlink()
        text = run(
            temp / "venv/bin/ollama-engine",
            "run",
            "demo",
            "Once upon a time",
            "--max-tokens",
            "8",
            "--seed",
            "1",
            cwd=temp,
        )
        if not text.strip():
            raise SystemExit("the installed wheel says nothing")
        print(f"the wheel runs without its sources: {text.strip()!r}")


if __name__ == "__main__":
    main()
