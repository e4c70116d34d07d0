"""Put the pinned ggml sources into a folder of the build tree: `fetch.py LOCK DEST`.

Runs at CMake's configure time with nothing but the standard library and pip.
A DEST that already holds the pinned version is left alone, so a rebuild does not download again.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

OFFLINE_HELP = """\
ggml: could not download {package} with pip (see pip's message above).
Without network access, do one of:
  * unpack that source distribution elsewhere and pass its folder that holds ggml's CMakeLists.txt:
      pip install . --config-settings=cmake.define.OLLAMA_ENGINE_GGML_SOURCE=/path/to/{subtree}
  * put the archive into a folder and point pip at it:
      PIP_NO_INDEX=1 PIP_FIND_LINKS=/path/to/folder pip install .\
"""


def read_lock(path: Path) -> dict[str, str]:
    lines = (line.strip() for line in path.read_text(encoding="utf-8").splitlines())
    return dict(line.split(maxsplit=1) for line in lines if line and not line.startswith("#"))


def download(lock: dict[str, str], into: Path) -> Path:
    """Download the source distribution by name; pip checks its hash, and so does `verify`."""
    requirements = into / "requirements.txt"
    requirements.write_text(f"{lock['package']} --hash=sha256:{lock['sha256']}\n", encoding="utf-8")
    name = lock["package"].split("==")[0]
    # --no-build-isolation: pip asks the archive for its metadata, and its build backend is ours too.
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps",
               "--no-build-isolation", "--no-binary", name, "--require-hashes", "-r", str(requirements),
               "-d", str(into)]  # fmt: skip
    if subprocess.run(command, check=False).returncode != 0:
        raise SystemExit(OFFLINE_HELP.format(**lock))
    return next(into.glob("*.tar.gz"))


def verify(archive: Path, sha256: str) -> None:
    found = hashlib.sha256(archive.read_bytes()).hexdigest()
    if found != sha256:
        raise SystemExit(f"ggml: {archive.name} has sha256 {found}, the lock file says {sha256}")


def unpack(archive: Path, lock: dict[str, str], dest: Path) -> None:
    """Take the ggml subtree and its licence out of the archive; DEST appears whole or not at all."""
    partial = dest.with_name(dest.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    with tarfile.open(archive) as tar:
        members = [m for m in tar.getmembers() if m.isfile() and "/" in m.name]
        for member in members:
            inner = member.name.split("/", 1)[1]
            if inner.startswith(lock["subtree"] + "/"):
                target = partial / inner[len(lock["subtree"]) + 1 :]
            elif inner == lock["license"]:
                target = partial / "LICENSE"
            else:
                continue
            if ".." in target.parts:
                raise SystemExit(f"ggml: refusing path {member.name} in {archive.name}")
            target.parent.mkdir(parents=True, exist_ok=True)
            source = tar.extractfile(member)
            assert source is not None
            target.write_bytes(source.read())
    (partial / ".oe-sha256").write_text(lock["sha256"], encoding="utf-8")
    shutil.rmtree(dest, ignore_errors=True)
    partial.rename(dest)


def main() -> None:
    lock_path, dest = Path(sys.argv[1]), Path(sys.argv[2])
    lock = read_lock(lock_path)
    stamp = dest / ".oe-sha256"
    if stamp.is_file() and stamp.read_text(encoding="utf-8") == lock["sha256"]:
        return
    dest.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=dest.parent) as temp:
        archive = download(lock, Path(temp))
        verify(archive, lock["sha256"])
        unpack(archive, lock, dest)


if __name__ == "__main__":
    main()
