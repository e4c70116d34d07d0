"""`make gpu-check`: what it finds out, decides and writes; and all of it once, on a worker."""

from __future__ import annotations

import math
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ollama_engine
from bench import gpu_check, peer_tools
from bench.gpu import building, checks, page, parity, speeds, suites, toolchain, verdicts
from bench.gpu.models import Setting, subjects
from bench.gpu.speeds import Speed
from bench.gpu.suites import Suite
from bench.gpu.toolchain import LAYER_SETTINGS, Machine
from bench.gpu.verdicts import Answer, Row
from bench.model_shapes import PRESETS, SHAPES
from ollama_engine.ml.device.device_info import Device

ROOT = Path(__file__).resolve().parents[2]
NVCC = "Cuda compilation tools, release 12.4, V12.4.131\n"
HEADERS = f"""#define VK_HEADER_VERSION 296
#define VK_HEADER_VERSION_COMPLETE VK_MAKE_API_VERSION(0, 1, 3, VK_HEADER_VERSION)
#define {LAYER_SETTINGS} 1
"""
OLD = HEADERS.replace(LAYER_SETTINGS, "VK_EXT_other").replace("296", "239")


def machine(programs: dict[str, str] | None = None, files: dict[str, str] | None = None, **environment: str) -> Machine:
    """A machine on which these command lines print these texts, and these files can be read."""
    return Machine((files or {}).get, lambda command: (programs or {}).get(" ".join(command)), environment)


CUDA = {"nvcc --version": NVCC, "nvidia-smi -L": "GPU 0: NVIDIA A10\n",
        "nvidia-smi --query-gpu=driver_version --format=csv,noheader": "550.1\n"}  # fmt: skip
VULKAN = {"glslc --version": "shaderc v2024.1\n"}
FILES = {"/usr/include/vulkan/vulkan_core.h": HEADERS, "/usr/include/spirv/unified1/spirv.hpp": "//"}


def test_cuda_before_vulkan() -> None:
    found = gpu_check.plan(None, machine(CUDA | VULKAN, FILES))
    assert found == toolchain.Toolchain("cuda", ("nvcc 12.4.131", "driver 550.1"))
    found = gpu_check.plan(None, machine(VULKAN, FILES))
    assert found == toolchain.Toolchain("vulkan", ("glslc v2024.1", "headers 1.3.296"))
    assert gpu_check.plan("vulkan", machine(CUDA | VULKAN, FILES)) == found


@pytest.mark.parametrize(
    ("backend", "programs", "files", "said"),
    [
        ("cuda", {"nvcc --version": NVCC}, {}, "nvidia-smi was not found"),
        ("cuda", {**CUDA, "nvidia-smi -L": "\n"}, {}, "lists no GPU"),
        ("cuda", {"nvidia-smi -L": "GPU 0: x"}, {}, "nvcc was not found"),
        ("vulkan", {}, FILES, "glslc was not found"),
        ("vulkan", VULKAN, {}, "vulkan_core.h was not found"),
        ("vulkan", VULKAN, {**FILES, "/usr/include/vulkan/vulkan_core.h": OLD}, "are 1.3.239, too old"),
        ("vulkan", VULKAN, {"/usr/include/vulkan/vulkan_core.h": HEADERS}, "spirv.hpp was not found"),
        (None, {}, {}, "GPU=rpc"),
    ],
)
def test_what_is_missing_is_said(
    backend: str | None, programs: dict[str, str], files: dict[str, str], said: str
) -> None:
    found = gpu_check.plan(backend, machine(programs, files))
    assert isinstance(found, str)
    assert said in found


def test_an_sdk_is_looked_at_first() -> None:
    files = {"/usr/include/vulkan/vulkan_core.h": OLD, "/usr/include/spirv/unified1/spirv.hpp": "//",
             "/sdk/include/vulkan/vulkan_core.h": HEADERS}  # fmt: skip
    found = gpu_check.plan("vulkan", machine(VULKAN, files, VULKAN_SDK="/sdk"))
    assert isinstance(found, toolchain.Toolchain)
    assert "headers 1.3.296" in found.versions


def test_a_command_is_repeated_as_it_was_typed() -> None:
    assert gpu_check.command_line(None, []) == "make gpu-check"
    assert gpu_check.command_line("rpc", ["--quick"]) == 'make gpu-check GPU=rpc GPU_CHECK="--quick"'


# -- verdicts ----------------------------------------------------------------------------------------------------------

GOOD = Row("demo", "f16 cache", 32, 32, None, 0.01, 0.001, 0.02, 0.05)


@pytest.mark.parametrize(
    ("changes", "passed"),
    [
        ({}, True),
        ({"largest": 0.051}, False),
        ({"median": 0.011}, False),
        ({"answer": 0.11}, False),
        ({"equal": 7, "lead": 0.09}, True),
        ({"equal": 7, "lead": 0.11}, False),
        ({"equal": 7, "lead": math.inf}, False),
        ({"largest": math.inf}, False),
        ({"error": "ended with -6"}, False),
    ],
)
def test_a_row_passes_where_roundings_explain_it(changes: dict[str, Any], passed: bool) -> None:
    assert replace(GOOD, **changes).passed is passed


def test_limits_are_wider_where_roundings_flip_more() -> None:
    assert verdicts.limit("f32") <= verdicts.limit("f16") < verdicts.limit("q8_0") < verdicts.limit("q4_0")
    assert verdicts.limit("f16", recurrent=True) == verdicts.RECURRENT
    assert verdicts.limit("f32", quantized=True) == verdicts.QUANTIZED
    assert verdicts.limit("f32", mixture=True) == verdicts.MIXTURE
    assert verdicts.limit("q4_0", quantized=True, mixture=True) == verdicts.limit("q4_0")


@pytest.mark.parametrize("limit", [verdicts.QUANTIZED, verdicts.CACHE_LIMITS["q4_0"]])
def test_limits_of_quantized_rows_are_near_what_is_found(limit: float) -> None:
    """A limit that no device comes near passes what is computed wrongly."""
    rows = re.findall(r"\| ([\d.]+) \| ([\d.]+) \|[^|]*\|$", (ROOT / "docs/gpu.md").read_text("utf-8"), re.MULTILINE)
    found = max(float(largest) for largest, told in rows if told == f"{limit:g}")
    assert found <= limit <= 1.5 * found


def test_rows_travel_as_json() -> None:
    assert Row(**GOOD.as_json()) == GOOD


def test_answers_are_compared_as_far_as_they_are_equal() -> None:
    cpu = Answer((5, 6, 7), ({5: -0.1, 9: -3.0}, {6: -0.2, 8: -0.4}, {7: -1.0}))
    near = Answer((5, 8, 7), ({5: -0.3}, {8: -0.3, 6: -0.35}, {7: -1.0}))
    found = verdicts.compare_answers(cpu, near, 2.0)
    assert found["equal"] == 1
    assert found["lead"] == pytest.approx(0.1)
    assert found["answer"] == pytest.approx(0.1)
    assert verdicts.compare_answers(cpu, cpu, 2.0) == {"equal": 3, "tokens": 3, "lead": None, "answer": 0.0}
    far = Answer((4,), ({4: -0.1},))
    assert verdicts.compare_answers(cpu, far, 2.0)["lead"] == math.inf
    no_numbers = replace(cpu, top=(cpu.top[0], {6: math.nan}, cpu.top[2]))
    assert verdicts.compare_answers(cpu, no_numbers, 2.0)["answer"] == math.inf
    ended = Answer((5,), ({5: -0.1},))
    assert verdicts.compare_answers(cpu, ended, 2.0)["lead"] == math.inf


def test_logits_are_compared_in_their_standard_deviations() -> None:
    cpu = np.random.default_rng(0).normal(0, 4, (8, 100)).astype(np.float32)
    device = cpu.copy()
    device[3, 5] += 2
    found = verdicts.compare_logits(cpu, device)
    assert found["largest"] == pytest.approx(0.5, rel=0.1)
    assert found["median"] == 0
    device[0, 0] = np.nan
    assert verdicts.compare_logits(cpu, device)["largest"] == math.inf


# -- children ----------------------------------------------------------------------------------------------------------


ABORTS = """
import os, sys
print('{"model": "m", "setting": "s"}', flush=True)
print("CUDA error", file=sys.stderr, flush=True)
os.abort()
"""


def test_a_child_that_aborts_is_a_row() -> None:
    first, last = parity.run_child("m", [sys.executable, "-c", ABORTS])
    assert first == Row("m", "s")
    assert not last.passed
    emulator = "qemu: uncaught target signal 6 (Aborted) - core dumped"  # has the last word where it emulates
    assert last.error in ("ended with -6: CUDA error", f"ended with -6: {emulator}")


def test_a_child_that_hangs_is_a_row() -> None:
    (row,) = parity.run_child("m", [sys.executable, "-c", "import time; time.sleep(60)"], 0.2)
    assert "nothing for" in row.error


JUNIT = """<testsuites><testsuite><testcase classname="tests.a.test_b" name="c[1]"/>
<testcase classname="tests.a.test_b" name="d"><failure message="x"/></testcase>
<testcase classname="tests.a.test_b" name="e"><skipped/></testcase></testsuite></testsuites>"""


def test_suites_are_counted() -> None:
    found = suites.read_junit("tests/a", JUNIT)
    assert found == Suite("tests/a", 1, 1, ("tests/a/test_b.py::d",))
    assert not found.ok
    assert not Suite("tests/a").ok, "a suite that ran nothing shows nothing"
    assert Suite("tests/a", 3).ok


@pytest.mark.slow
def test_a_suite_whose_process_ends_badly_has_not_passed(tmp_path: Path) -> None:
    """A driver may crash when all tests have passed, and pytest's file says nothing of it."""
    tests = tmp_path / "test_a.py"
    tests.write_text("import atexit, os\natexit.register(os._exit, 7)\ndef test_a(): pass\n")
    found = suites.run_suite([], str(tests))
    assert (found.passed, found.failed, found.ok) == (1, (), False)
    assert found.error.startswith("ended with 7: ")
    tests.write_text("def test_a(): pass\n")
    assert suites.run_suite([], str(tests)) == Suite(str(tests), 1)


def test_suites_are_those_that_are_there() -> None:
    assert [name for name in suites.SUITES if not (ROOT / name).exists()] == []


def test_every_architecture_is_compared() -> None:
    from tests.models.variants import WRITERS  # noqa: PLC0415 (0.3 s)

    found = subjects()
    names = [subject.name for subject in found]
    assert len(set(names)) == len(names)
    for name in WRITERS:
        assert any(subject.startswith(f"tiny {name}") for subject in names), name
    assert str(Setting("f16", "on", 1)) == "f16 cache, flash attention, output"
    assert {setting.cache for subject in found for setting in subject.settings} == {"f32", "f16", "q8_0", "q4_0"}


# -- devices and builds ------------------------------------------------------------------------------------------------


def test_a_device_is_chosen() -> None:
    found = [Device(f"Vulkan{i}", "gpu", "Vulkan", i, "x", 1, 1) for i in range(2)]
    assert checks.choose_device("vulkan", found, None).name == "Vulkan0"
    assert checks.choose_device("vulkan", found, "Vulkan1").name == "Vulkan1"
    with pytest.raises(SystemExit, match="no device Vulkan2; there are: Vulkan0, Vulkan1"):
        checks.choose_device("vulkan", found, "Vulkan2")
    with pytest.raises(SystemExit, match="finds no device of it"):
        checks.choose_device("cuda", found, None)
    assert checks.is_software("llvmpipe (LLVM 15.0.6, 256 bits)")
    assert not checks.is_software("NVIDIA A10")


def test_models_are_named_by_patterns() -> None:
    names = ["demo", "demo-vision", "tiny llama-minimal"]
    assert checks.matching(names, ["*"]) == names
    assert checks.matching(names, ["tiny*", "demo"]) == ["demo", "tiny llama-minimal"]
    with pytest.raises(SystemExit, match="no model tiny2"):
        checks.matching(names, ["demo", "tiny2*"])


def test_progress_of_a_build() -> None:
    assert building.progress("  [17/569] Building CXX object") == "17 of 569"
    assert building.progress("Installing") is None


def test_a_failed_build_shows_its_last_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "make"
    program.write_text(f"#!{sys.executable}\nprint('target CUDA::cublas was not found')\nraise SystemExit(2)\n")
    program.chmod(0o755)
    monkeypatch.setattr(building, "ROOT", tmp_path)
    with pytest.raises(SystemExit, match=r"not found\n.*build with cuda failed.*\n  - .*no cuBLAS"):
        building.build("cuda", make=str(program))


def test_peers_are_built_on_the_same_ggml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "_lib").mkdir()
    (tmp_path / "_lib/libggml-vulkan-oe.so").touch()
    monkeypatch.setattr(ollama_engine, "__path__", [str(tmp_path)])
    assert peer_tools.build_options("vulkan")["OLLAMA_ENGINE_GGML_LIBRARIES"] == str(tmp_path / "_lib")
    assert "OLLAMA_ENGINE_GGML_LIBRARIES" not in peer_tools.build_options(None)
    with pytest.raises(SystemExit, match="built without cuda"):
        peer_tools.build_options("cuda")


def test_speeds_are_medians(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([{"prompt of 8": 100.0, "answer of 4": 10.0}, {"prompt of 8": 900.0, "answer of 4": 30.0},
                  {"prompt of 8": 300.0, "answer of 4": 20.0}])  # fmt: skip
    monkeypatch.setattr(speeds, "ours", lambda *_: next(times))
    found = speeds.compare(["a.gguf"], "CUDA0", None, speeds.Load((8,), 4, 3), lambda _: None)
    assert found == [Speed("a", "prompt of 8", 300.0), Speed("a", "answer of 4", 20.0)]


def test_shapes_are_those_of_a_gpu() -> None:
    parse = checks.parser().parse_args
    assert checks.shapes(parse(["--backend", "cuda"])) == list(checks.GPU_SHAPES)
    assert checks.shapes(parse(["--backend", "rpc"])) == checks.shapes(parse(["--backend", "cuda", "--quick"])) == []
    assert checks.shapes(parse(["--backend", "cuda", "--shapes", "qwen-0.5b:q8_0"])) == ["qwen-0.5b:q8_0"]
    for shape in checks.GPU_SHAPES:
        name, _, preset = shape.partition(":")
        assert name in SHAPES
        assert preset in PRESETS


# -- the page ----------------------------------------------------------------------------------------------------------

REPORT = page.Report(
    "2026-01-02", "CUDA0", "NVIDIA A10", "cuda", ("nvcc 12.4",), "make gpu-check", (GOOD,),
    (Suite("tests/a", 5, 1),),
    (Speed("a.gguf", "prompt of 512", 300.0, 200.0), Speed("a.gguf", "answer of 128", 20.0, 40.0),
     Speed("b.gguf", "answer of 4", 2.0)),
)  # fmt: skip


def test_a_section_has_all_of_it() -> None:
    text = page.section(REPORT)
    for line in (
        "### NVIDIA A10 (cuda)",
        "| Verdict | passed |",
        "Beside the CPU: 1 of 1 comparisons passed.",
        "| demo | f16 cache | 32 of 32 | - | 0.0100 | 0.0010 | 0.0200 | 0.05 |  |",
        "| `tests/a` | 5 | 0 | 1 |",
        "| a.gguf | prompt of 512 | 300.0 | 200.0 | 1.50 |",
        "| a.gguf | answer of 128 | 20.0 | 40.0 | 0.50 |",
        "| b.gguf | answer of 4 | 2.0 | - | - |",
    ):
        assert line in text.split("\n"), line


def test_tiny_models_that_pass_alike_share_a_row() -> None:
    rows = [replace(GOOD, model=f"tiny {i}", largest=0.01 * i, lead=0.02 if i == 2 else None) for i in range(4)]
    rows += [replace(GOOD, model="tiny bad", largest=0.9), replace(GOOD, model="tiny other", setting="f32 cache")]
    text = page.section(replace(REPORT, rows=rows))
    assert "| tiny models: 4 | f16 cache | 128 of 128 | 0.0200 | 0.0100 | 0.0010 | 0.0300 | 0.05 |  |" in text
    assert "| tiny bad | f16 cache |" in text
    assert "| tiny other | f32 cache |" in text
    assert "| tiny 1 |" not in text
    assert "Beside the CPU: 5 of 6 comparisons passed." in text


def test_what_failed_is_in_the_section() -> None:
    bad = replace(REPORT, rows=(replace(GOOD, error="a | b"),), suites=(Suite("tests/a", 1, 0, ("tests/a.py::b",)),))
    text = page.section(bad)
    assert "**FAILED** a \\| b |" in text
    assert "- `tests/a.py::b`" in text
    assert "| Verdict | **FAILED** |" in text
    assert not replace(REPORT, suites=(Suite("tests/a", error="ended with -6"),)).passed


def test_a_section_replaces_that_of_the_same_device() -> None:
    other = replace(REPORT, description="llvmpipe", backend="vulkan")
    text = page.insert(page.insert("# GPUs\n\nWords.\n", page.section(REPORT)), page.section(other))
    again = page.insert(text, page.section(replace(REPORT, date="2027-01-01")))
    assert again == text.replace("2026-01-02", "2027-01-01", 1)
    assert again.startswith("# GPUs\n\nWords.\n\n<!-- gpu-check: cuda, NVIDIA A10 -->\n\n### ")
    assert again.endswith("<!-- end of gpu-check: vulkan, llvmpipe -->\n")


@pytest.mark.slow
def test_all_of_it_on_a_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = tmp_path / "gpu.md"
    status = checks.main([
        "--backend", "rpc", "--models", "tiny llama-minimal",
        "--parts", "parity", "--page", str(written),
    ])  # fmt: skip
    text = written.read_text(encoding="utf-8")
    assert status == 0
    assert "| tiny llama-minimal | f32 cache, two products, all layers | 32 of 32 |" in text
