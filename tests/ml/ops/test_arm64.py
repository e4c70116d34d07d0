"""Kernels for ARM64, cross-compiled and run by QEMU: products with NEON (SDOT, and SMMLA) have the bits of plain C,
read no byte beyond their operands, and are left alone where the CPU lacks the instructions. guarded_products.c compares
them.
"""

from __future__ import annotations

import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.ml.ops.test_guarded_products import PLAIN_C_ALONE

ROOT = Path(__file__).resolve().parents[3]
SOURCE = Path(__file__).with_name("guarded_products.c")
COMPILER, EMULATOR = shutil.which("aarch64-linux-gnu-gcc") or "", shutil.which("qemu-aarch64") or ""
KERNELS = ROOT / "csrc/kernels/small_batch"
# As CMakeLists.txt compiles them.
SETS: dict[str, tuple[str, ...]] = {
    "neon": ("-march=armv8.2-a+dotprod", "-DOE_NEON", "-DOE_SB_SET=neon"),
    "i8mm": ("-march=armv8.2-a+dotprod+i8mm", "-DOE_NEON", "-DOE_SB_SET=i8mm"),
    "plain": ("-DOE_SB_SCALAR", "-DOE_SB_SET=scalar", "-O1"),
}
ALIKE = ("f16", "bf16", "f16_whole", "activations")
"""Files that SMMLA has no part in."""
OTHERS = ("kernels/small_batch/kernel.c", "kernels/amx/amx.c", "threads/thread_scratch.c")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),  # compiling takes a minute, beside other work several
    pytest.mark.skipif(not COMPILER, reason="needs aarch64-linux-gnu-gcc (gcc-aarch64-linux-gnu on Debian)"),
    pytest.mark.skipif(not EMULATOR, reason="needs qemu-aarch64 (qemu-user on Debian)"),
]


def compiled(source: Path, to: Path, *options: str) -> Path:
    command = [COMPILER, "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O2", "-ffp-contract=off", "-fno-trapping-math"]
    command += [f"-I{ROOT / 'csrc'}", "-DOE_HAS_NEON", "-DOE_HAS_I8MM", *options, "-c", str(source), "-o", str(to)]
    subprocess.run(command, check=True, timeout=600)
    return to


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("arm64")
    sources = [path for path in sorted(KERNELS.glob("*.c")) if path.stem not in ("kernel", "op", "experts_op")]
    jobs = [(path, folder / f"{path.stem}_{name}.o", options)
            for name, options in SETS.items() for path in sources
            if name != "i8mm" or path.stem not in ALIKE]  # fmt: skip
    jobs += [(ROOT / "csrc" / path, folder / f"{Path(path).stem}.o", ()) for path in OTHERS]
    with ThreadPoolExecutor(2) as pool:
        objects = list(pool.map(lambda job: compiled(job[0], job[1], *job[2]), jobs))
    made = folder / "guarded_products"
    command = [COMPILER, "-O1", f"-I{ROOT / 'csrc'}", str(SOURCE), *map(str, objects), "-static", "-lm"]
    subprocess.run([*command, "-Wl,--wrap=oe_thread_scratch", "-o", str(made)], check=True, timeout=200)
    return made


@pytest.fixture(scope="module")
def chooser(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program with the kernels of Q4_0 alone: it says what is chosen, and takes seconds to compile."""
    folder = tmp_path_factory.mktemp("chooser")
    objects = [compiled(KERNELS / "q4_0.c", folder / f"{name}.o", *options, "-O0") for name, options in SETS.items()]
    objects.append(compiled(KERNELS / "kernel.c", folder / "kernel.o", "-O0"))
    made = folder / "chooser"
    command = [COMPILER, "-O0", f"-I{ROOT / 'csrc'}", str(SOURCE), *map(str, objects), "-static", "-lm"]
    subprocess.run([*command, "-Wl,--unresolved-symbols=ignore-all", "-o", str(made)], check=True, timeout=200)
    return made


def run(program: Path, cpu: str, what: str = "quick") -> tuple[int, str]:
    command = [EMULATOR, "-cpu", cpu, str(program), what]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    return done.returncode, done.stdout


@pytest.mark.parametrize("cpu", ["neoverse-n1", "max"])  # without SMMLA, and with it
def test_products_with_neon_have_the_bits_of_plain_c(program: Path, cpu: str) -> None:
    assert run(program, cpu) == (0, "")


@pytest.mark.parametrize(("cpu", "sets"), [("cortex-a72", ""), ("neoverse-n1", "neon "), ("max", "neon i8mm")])
def test_a_cpu_takes_what_its_hwcap_says(chooser: Path, cpu: str, sets: str) -> None:
    assert run(chooser, cpu, "sets") == (0, sets)


def test_a_cpu_without_sdot_takes_none_of_them(program: Path) -> None:
    assert run(program, "cortex-a72") == (PLAIN_C_ALONE, "")
