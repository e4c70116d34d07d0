"""Build the sdist, a wheel from it, and run the wheel where no source is left: `python tests/check_package.py`.

Too slow for the test suite; .ci/run calls it. ccache makes it a matter of a minute.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NEEDED = (
    "_lib/LICENSE.ggml",
    "_lib/NOTICE.ggml",
    "py.typed",
    "ml/graph/tensor.pyi",
    "demo/demo.gguf",
    "demo/demo-vision.gguf",
    "demo/shapes.png",
    "sample/_sample.pyi",
)


def run(*command: str | Path, cwd: Path, **env: str) -> str:
    """Run a command that must succeed; its output."""
    print("+", *command, flush=True)
    done = subprocess.run(
        [str(c) for c in command], cwd=cwd, env={**os.environ, **env}, check=False, text=True, capture_output=True
    )
    if done.returncode:
        raise SystemExit(f"{done.stdout}{done.stderr}ended with {done.returncode}")
    return done.stdout


def check_contents(wheel: Path) -> None:
    """What must and must not be in a wheel."""
    names = zipfile.ZipFile(wheel).namelist()
    missing = [n for n in NEEDED if f"ollama_engine/{n}" not in names]
    licences = [n.partition(".dist-info/licenses/")[2] for n in names if ".dist-info/licenses/" in n]
    missing += sorted({"LICENSE", "csrc/ggml/LICENSE", "csrc/ggml/NOTICE"} - set(licences))
    unwanted = [n for n in names if n.endswith((".pyx", ".pxd", ".c", ".h", ".cxx"))]
    if missing or unwanted:
        raise SystemExit(f"wheel: missing {missing}, unwanted {unwanted}")


def main() -> None:
    """Sdist, wheel, install, run."""
    with tempfile.TemporaryDirectory() as folder:
        temp = Path(folder)
        build = "from scikit_build_core.build import build_sdist; import sys; print(build_sdist(sys.argv[1]))"
        sdist = temp / run(sys.executable, "-c", build, temp, cwd=ROOT).split()[-1]
        # The pinned sources are in the build tree already; the sdist itself holds none.
        ggml = next((ROOT / "build").glob("*/ggml-source"))
        run(sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-w", temp, sdist,
            f"--config-settings=cmake.define.OLLAMA_ENGINE_GGML_SOURCE={ggml}", cwd=temp)  # fmt: skip
        wheel = next(temp.glob("*.whl"))
        check_contents(wheel)
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
