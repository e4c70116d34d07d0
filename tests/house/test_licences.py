"""Licences: a wheel names those of all that is in it, and no build goes without them."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CMAKE = Path(sys.executable).with_name("cmake")
LICENCES = ["LICENSE", "csrc/ggml/LICENSE", "csrc/ggml/NOTICE"]


def test_the_package_names_the_licences_of_all_that_is_in_it() -> None:
    assert metadata("ollama_engine").get_all("License-File") == LICENCES
    assert all((ROOT / name).is_file() for name in LICENCES)


def test_the_licence_of_ggml_is_that_of_the_pinned_sources() -> None:
    for pinned in ROOT.glob("build/*/ggml-source/LICENSE"):
        assert pinned.read_text() == (ROOT / "csrc/ggml/LICENSE").read_text()


COMPILED = ("*.c", "*.cpp", "*.h", "ggml-cpu/*.c*", "ggml-cpu/*.h", "ggml-cpu/llamafile/*", "ggml-cpu/amx/*",
            "ggml-cpu/arch/x86/*", "ggml-cpu/arch/arm/*", "ggml-rpc/*.cpp")  # fmt: skip
"""Of ggml's sources, what wheels are compiled from."""
HOLDER = re.compile(r"copyright (?:\(c\) )?(\d{4}[-\d]* .+?)\.?$", re.IGNORECASE | re.MULTILINE)


def test_every_copyright_in_the_compiled_sources_is_in_the_notice() -> None:
    notice = " ".join((ROOT / "csrc/ggml/NOTICE").read_text().split())
    for sources in ROOT.glob("build/*/ggml-source/src"):
        files = [path for pattern in COMPILED for path in sources.glob(pattern)]
        assert sources / "ggml-cpu/ops.cpp" in files
        for path in files:
            unnamed = [holder for holder in HOLDER.findall(path.read_text()) if holder not in notice]
            assert not unnamed, f"{path.name}: csrc/ggml/NOTICE does not name {unnamed}, nor may csrc/base/sbom.py"


@pytest.mark.skipif(not CMAKE.is_file(), reason="the build's cmake is not in this environment")
def test_sources_without_a_licence_are_not_built(tmp_path: Path) -> None:
    """What is built is passed on: a warning in a long log is read by nobody."""
    ggml = tmp_path / "sources" / "ggml"
    (ggml / "include").mkdir(parents=True)
    (ggml / "CMakeLists.txt").write_text("add_library(ggml INTERFACE)\n")
    libraries = tmp_path / "lib"
    libraries.mkdir()
    for name in ("ggml", "ggml-base", "ggml-cpu"):
        (libraries / f"lib{name}-oe.so").touch()
    command = [str(CMAKE), "-S", str(ROOT), "-B", str(tmp_path / "build"), f"-DPython_EXECUTABLE={sys.executable}",
               f"-DOLLAMA_ENGINE_GGML_SOURCE={ggml}",
               f"-DOLLAMA_ENGINE_GGML_LIBRARIES={libraries}"]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert f"No LICENSE in {ggml}" in " ".join(done.stderr.split())
