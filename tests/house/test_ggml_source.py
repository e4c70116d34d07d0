"""csrc/ggml/fetch.py: what of the pinned archive reaches the build, and what it says when it cannot."""

from __future__ import annotations

import hashlib
import io
import subprocess
import sys
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from bench.peer_tools import load_fetch

ROOT = Path(__file__).resolve().parents[2]
FILES = {
    "pkg-1/vendor/ggml/CMakeLists.txt": "project(ggml)",
    "pkg-1/vendor/ggml/src/ggml.c": "int x;",
    "pkg-1/vendor/LICENSE": "MIT",
    "pkg-1/vendor/other.c": "not ours",
    "pkg-1/setup.py": "not ours",
}


@pytest.fixture
def fetch() -> ModuleType:
    return load_fetch()


def archive_of(path: Path, files: Mapping[str, str]) -> str:
    """Write an archive and return its sha256."""
    with tarfile.open(path, "w:gz") as tar:
        for name, text in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(text)
            tar.addfile(entry, io.BytesIO(text.encode()))
    return hashlib.sha256(path.read_bytes()).hexdigest()


def write_lock(folder: Path, sha256: str) -> Path:
    path = folder / "ggml.lock"
    path.write_text(
        f"# a comment\npackage pkg==1\nsha256 {sha256}\nsubtree vendor/ggml\nlicense vendor/LICENSE\nversion 0\n"
    )
    return path


def pip_that(copies: Path | None) -> Callable[..., subprocess.CompletedProcess[bytes]]:
    """Stands in for subprocess.run: puts an archive where pip would, or fails as pip does without a network."""

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[bytes]:
        assert command[:4] == [sys.executable, "-m", "pip", "download"]
        assert {"--no-deps", "--no-binary", "--require-hashes"} <= set(command)
        if copies is None:
            return subprocess.CompletedProcess(command, 1)
        (Path(command[-1]) / "pkg-1.tar.gz").write_bytes(copies.read_bytes())
        return subprocess.CompletedProcess(command, 0)

    return run


def run_main(fetch: ModuleType, monkeypatch: pytest.MonkeyPatch, lock: Path, pip: Callable[..., Any]) -> Path:
    dest = lock.parent / "build" / "ggml-source"
    monkeypatch.setattr(sys, "argv", ["fetch.py", str(lock), str(dest)])
    monkeypatch.setattr(fetch.subprocess, "run", pip)
    fetch.main()
    return dest


def test_only_ggml_and_its_licence_are_unpacked_and_once(
    fetch: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    archive = tmp_path / "archive"
    lock = write_lock(tmp_path, archive_of(archive, FILES))
    dest = run_main(fetch, monkeypatch, lock, pip_that(archive))
    found = {str(p.relative_to(dest)) for p in dest.rglob("*") if p.is_file()}
    assert found == {"CMakeLists.txt", "src/ggml.c", "LICENSE", ".oe-sha256"}
    assert (dest / "LICENSE").read_text() == "MIT"
    assert [p.name for p in dest.parent.iterdir()] == [dest.name], "no temporary files stay"

    def no_pip(*_: Any, **__: Any) -> Any:
        raise AssertionError("a rebuild downloads nothing")

    run_main(fetch, monkeypatch, lock, no_pip)


def test_another_pin_replaces_the_sources(fetch: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    archive = tmp_path / "archive"
    lock = write_lock(tmp_path, archive_of(archive, FILES))
    run_main(fetch, monkeypatch, lock, pip_that(archive))
    lock = write_lock(tmp_path, archive_of(archive, {"pkg-1/vendor/ggml/CMakeLists.txt": "project(newer)"}))
    dest = run_main(fetch, monkeypatch, lock, pip_that(archive))
    assert (dest / "CMakeLists.txt").read_text() == "project(newer)"
    assert not (dest / "src").exists()


def test_without_a_network_it_says_what_to_do(
    fetch: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    lock = write_lock(tmp_path, "0" * 64)
    with pytest.raises(SystemExit) as caught:
        run_main(fetch, monkeypatch, lock, pip_that(None))
    told = str(caught.value)
    assert "could not download pkg==1" in told
    assert "OLLAMA_ENGINE_GGML_SOURCE=/path/to/vendor/ggml" in told
    assert "PIP_FIND_LINKS" in told
    assert not (tmp_path / "build/ggml-source").exists()


def test_an_archive_with_another_hash_is_refused(
    fetch: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    archive = tmp_path / "archive"
    archive_of(archive, FILES)
    lock = write_lock(tmp_path, "0" * 64)
    with pytest.raises(SystemExit, match="the lock file says 0000"):
        run_main(fetch, monkeypatch, lock, pip_that(archive))
    assert not (tmp_path / "build/ggml-source").exists()


def test_a_path_that_leads_out_is_refused(fetch: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    archive = tmp_path / "archive"
    lock = write_lock(tmp_path, archive_of(archive, {**FILES, "pkg-1/vendor/ggml/../../../evil": "x"}))
    with pytest.raises(SystemExit, match="refusing path"):
        run_main(fetch, monkeypatch, lock, pip_that(archive))
    assert not (tmp_path / "evil").exists()
    assert not (tmp_path / "build/ggml-source").exists()


def test_the_lock_file_names_all_that_is_asked_of_it(fetch: ModuleType) -> None:
    lock = fetch.read_lock(ROOT / "csrc/ggml/ggml.lock")
    assert set(lock) == {"package", "sha256", "subtree", "license", "version"}
    assert len(lock["sha256"]) == 64
    assert "==" in lock["package"]
