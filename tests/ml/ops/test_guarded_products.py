"""Products whose operands end where memory does, and products without memory of their own: guarded_products.c, which
calls the kernels that were built."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ollama_engine.ml.ops.small_batch import small_batch_instructions
from tests.support.instruction_sets import PRODUCTS, RecordProperty, every
from tests.support.suite import scaled

ROOT = Path(__file__).resolve().parents[3]
SOURCE = Path(__file__).with_name("guarded_products.c")
PLAIN_C_ALONE = 3
COMPILER = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang") or ""
KERNELS = (
    "oe_small_batch_*.dir/**/*.c.o",
    "oe_small_batch.dir/**/kernel.c.o",
    "oe_ml_ops_small_batch.dir/**/amx.c.o",
    "oe_ml_ops_small_batch.dir/**/thread_scratch.c.o",
)

pytestmark = pytest.mark.skipif(sys.platform != "linux" or not COMPILER, reason="needs Linux and a C compiler")


def built_kernels() -> list[Path]:
    """Objects of the latest build tree without sanitizers, which the program is not linked with."""
    for cache in sorted(ROOT.glob("build/cp*/CMakeCache.txt"), key=lambda p: p.stat().st_mtime, reverse=True):
        tree = cache.parent
        rules = (tree / "build.ninja").read_text(encoding="utf-8")  # names none that a build with other switches left
        objects = [path for pattern in KERNELS for path in (tree / "CMakeFiles").glob(pattern)]
        objects = [path for path in objects if str(path.relative_to(tree)) in rules]
        if len(objects) > len(KERNELS):
            return objects
    pytest.skip("no build tree with the kernels is here; `make build` leaves one")


def test_guarded_products(tmp_path: Path, record_property: RecordProperty) -> None:
    program = tmp_path / "guarded_products"
    command = [COMPILER, "-O1", f"-I{ROOT / 'csrc'}", str(SOURCE), *map(str, built_kernels()), "-lm"]
    subprocess.run([*command, "-Wl,--wrap=oe_thread_scratch", "-o", str(program)], check=True, timeout=200)
    child = subprocess.run(
        [str(program), scaled("whole", quick="quick")], capture_output=True, text=True, timeout=200, check=False
    )
    expected = 0 if every(PRODUCTS, small_batch_instructions("q4_0"), record_property)[1:] else PLAIN_C_ALONE
    assert (child.returncode, child.stdout) == (expected, ""), child.stderr
