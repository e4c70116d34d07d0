"""The declarations that Cython believes, against the headers of the ggml that was built."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from ollama_engine.config import RANGES
from ollama_engine.ml.graph.backend import MAX_DEVICES

ROOT = Path(__file__).resolve().parents[2]
ML = ROOT / "ollama_engine" / "ml"
PXD = [ML / "ggml" / "libggml.pxd", ML / "ggml" / "libgguf.pxd"]


@pytest.fixture(scope="module")
def check_pxd() -> ModuleType:
    spec = importlib.util.spec_from_file_location("check_pxd", ROOT / "csrc" / "ggml" / "check_pxd.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def include() -> Path:
    """The headers of the latest build tree: the downloaded ones, or those of OLLAMA_ENGINE_GGML_SOURCE."""
    for cache in sorted(ROOT.glob("build/*/CMakeCache.txt"), key=lambda p: p.stat().st_mtime, reverse=True):
        local = re.search(r"^OLLAMA_ENGINE_GGML_SOURCE:PATH=(.+)$", cache.read_text(encoding="utf-8"), re.MULTILINE)
        folder = (Path(local[1]) if local else cache.parent / "ggml-source") / "include"
        if (folder / "ggml.h").exists():
            return folder
    pytest.skip("no build tree with ggml's headers is here; `make build` leaves one")


@pytest.mark.parametrize("pxd", PXD, ids=lambda p: p.name)
def test_declarations_are_those_of_the_headers(check_pxd: ModuleType, include: Path, pxd: Path) -> None:
    assert check_pxd.check(include, pxd) == []


def test_everything_is_understood(check_pxd: ModuleType) -> None:
    """As many functions as there are lines that declare one: nothing is passed over."""
    for pxd in PXD:
        text = pxd.read_text(encoding="utf-8")
        said = check_pxd.read_pxd(text)
        named = set(re.findall(r"^ {4}(?!ctypedef).*?\b(ggml_\w+|gguf_\w+)\"? ?\(", text, flags=re.MULTILINE))
        named |= set(re.findall(r"^ctypedef .*# (\w+)$", text, flags=re.MULTILINE))
        assert set(said.functions) == named


MISTAKES = [
    ("int64_t ggml_nelements(", "int32_t ggml_nelements(", "function ggml_nelements"),
    (
        "size_t ggml_row_size(ggml_type type, int64_t ne)",
        "size_t ggml_row_size(ggml_type type, int ne)",
        "ggml_row_size",
    ),
    ("void ggml_reset(ggml_context *ctx)", "void ggml_reset()", "function ggml_reset"),
    ("const char *ggml_version()", "char *ggml_version()", "function ggml_version"),
    ("void ggml_free(", "void ggml_release(", "function ggml_release"),
    ("        GGML_TYPE_BF16\n", "        GGML_TYPE_BF17\n", "enum ggml_type: the headers lack GGML_TYPE_BF17"),
    ("        int64_t ne[4]\n", "        int64_t ne[5]\n", "struct ggml_tensor.ne"),
    ("        size_t view_offs\n", "        int view_offs\n", "struct ggml_tensor.view_offs"),
    ("        void *data\n", "        void *bytes\n", "struct ggml_tensor.bytes"),
    ("    int GGML_MAX_NAME\n", "    int GGML_MAX_LABEL\n", "constant GGML_MAX_LABEL"),
    ("void *user_data) noexcept", "int user_data) noexcept", "function pointer ggml_log_callback"),
    ("(ggml_threadpool *threadpool)", "(int threadpool)", "function ggml_threadpool_free"),
]


@pytest.mark.parametrize(("right", "wrong", "message"), MISTAKES, ids=[m[2] for m in MISTAKES])
def test_mistakes_are_found(
    check_pxd: ModuleType, include: Path, tmp_path: Path, right: str, wrong: str, message: str
) -> None:
    text = PXD[0].read_text(encoding="utf-8")
    assert right in text
    copy = tmp_path / "libggml.pxd"
    copy.write_text(text.replace(right, wrong, 1), encoding="utf-8")
    found = check_pxd.check(include, copy)
    assert len(found) == 1
    assert message in found[0]


def test_it_runs_as_a_program(
    check_pxd: ModuleType, include: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert check_pxd.main(str(include), *map(str, PXD)) == 0
    assert capsys.readouterr().out == ""
    (tmp_path / "none.pxd").write_text("# nothing\n", encoding="utf-8")
    assert check_pxd.main(str(include), str(tmp_path / "none.pxd")) == 1
    assert "no function is declared" in capsys.readouterr().out


def test_limits_stated_here_are_those_of_ggml(include: Path) -> None:
    """Those that its headers do not tell; `GGML_MAX_SRC` and the like are read from them when this is compiled."""

    def defined(file: Path, name: str) -> int:
        found = re.search(rf"^#define {name} +(\d+)$", file.read_text(encoding="utf-8"), re.MULTILINE)
        assert found is not None, name
        return int(found[1])

    sources = include.parent / "src"
    alive = re.search(
        r"^cdef int MAX_ALIVE = (\d+)$", (ML / "graph" / "computation.pyx").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert alive is not None
    # One gap beside every value alive, and some to spare.
    assert int(alive[1]) < defined(sources / "ggml-alloc.c", "MAX_FREE_BLOCKS")
    assert defined(sources / "ggml-backend.cpp", "GGML_SCHED_MAX_BACKENDS") == MAX_DEVICES
    assert defined(include / "ggml.h", "GGML_MAX_N_THREADS") == RANGES["threads"][1]
