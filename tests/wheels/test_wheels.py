"""What makes a wheel run on older Linux, and what looks into a wheel: wheels/."""

from __future__ import annotations

import ctypes
import email
import importlib.metadata
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from wheels import arm64, build, check, foreign, old_symbols, suite

ROOT = Path(__file__).resolve().parents[2]
SOURCE = """
#include <condition_variable>
#include <cmath>
#include <filesystem>
#include <mutex>
#include <sys/stat.h>
#include <thread>

extern "C" int together(const char *path, double x) {
    std::mutex lock;
    std::condition_variable ready;
    bool done = false;
    std::thread other([&] { std::lock_guard hold(lock); done = true; ready.notify_all(); });
    { std::unique_lock hold(lock); ready.wait(hold, [&] { return done; }); }
    other.join();
    struct stat found;
    return std::filesystem::exists(path) + 2 * (stat(path, &found) == 0) + 4 * (std::log(x) == std::log(x));
}
"""

pytestmark = pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler here")


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("old")
    old_symbols.make(folder)
    return folder


def library(folder: Path, source: str, *options: str, compiler: str = "c++") -> Path:
    (folder / "a.cpp").write_text(source)
    made = folder / "liba.so"
    made_of = [compiler, "-std=c++17", "-O1", "-fPIC", "-shared", folder / "a.cpp", "-o", made]
    subprocess.run([*made_of, *options], check=True)
    return made


def newest_glibc(path: Path) -> tuple[int, ...]:
    text = subprocess.run(["readelf", "-V", "-W", path], check=True, capture_output=True, text=True).stdout
    return max(tuple(map(int, number.split("."))) for number in re.findall(r"Name: GLIBC_([\d.]+)", text))


def test_a_library_asks_for_old_symbols_alone_and_runs(old: Path, tmp_path: Path) -> None:
    made = library(tmp_path, SOURCE, f"-L{old}", "-Wl,--exclude-libs,ALL")
    assert newest_glibc(made) <= old_symbols.GLIBC
    assert list(check.unknown_symbols(wheel_of(tmp_path, made))) == []
    together = ctypes.CDLL(str(made)).together
    together.argtypes = [ctypes.c_char_p, ctypes.c_double]
    assert together(str(tmp_path).encode(), 2.0) == 7
    assert together(str(tmp_path / "none").encode(), 2.0) == 4


CROSS = "aarch64-linux-gnu-g++"


@pytest.mark.skipif(shutil.which(CROSS) is None, reason=f"no {CROSS} here")
def test_a_cross_compiler_has_old_symbols_of_its_system(tmp_path: Path) -> None:
    env = {**os.environ, "CC": CROSS.replace("g++", "gcc")}
    subprocess.run([sys.executable, ROOT / "wheels/old_symbols.py", tmp_path / "old"], env=env, check=True)
    made = library(tmp_path, SOURCE, f"-L{tmp_path / 'old'}", "-Wl,--exclude-libs,ALL", compiler=CROSS)
    assert newest_glibc(made) <= old_symbols.GLIBC < newest_glibc(library(tmp_path, SOURCE, compiler=CROSS))
    assert list(check.unknown_symbols(wheel_of(tmp_path, made))) == []


def test_what_nothing_provides_is_found(old: Path, tmp_path: Path) -> None:
    """A function that old machines lack is left without a version: here it would be found, and there it would not."""
    made = library(
        tmp_path, 'extern "C" int thrd_of_later(); extern "C" int f() { return thrd_of_later(); }', f"-L{old}"
    )
    assert list(check.unknown_symbols(wheel_of(tmp_path, made))) == ["liba.so: thrd_of_later"]


def test_what_the_system_has_without_a_version_is_there(tmp_path: Path) -> None:
    """As all of musl's symbols are."""
    names = ["thrd_of_later", "of_nobody"]
    made = library(tmp_path, "".join(f'extern "C" int {name}();' for name in names)
                   + f'extern "C" int f() {{ return {"() + ".join(names)}(); }}')  # fmt: skip
    (tmp_path / "system").mkdir()
    system = library(tmp_path / "system", 'extern "C" int thrd_of_later() { return 1; }')
    assert list(check.unknown_symbols(wheel_of(tmp_path, made), [system])) == ["liba.so: of_nobody"]


def wheel_of(folder: Path, *files: Path) -> Path:
    wheel = folder / "a-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for file in files:
            archive.write(file, file.name)
    return wheel


def test_the_parts_of_a_wheel_are_listed(tmp_path: Path) -> None:
    """The same bytes each time, with the pinned sources' hash, and in the package as it is installed."""
    lock = ROOT / "csrc/ggml/ggml.lock"
    written = []
    for name in ("a.json", "b.json"):
        command = [sys.executable, ROOT / "csrc/base/sbom.py", "1.2", lock, tmp_path / name, "libstdc++==12.2"]
        subprocess.run([str(word) for word in command], check=True)
        written.append((tmp_path / name).read_text())
    assert written[0] == written[1]
    parts = {part["name"]: part for part in json.loads(written[0])["components"]}
    pinned = re.findall(r"^sha256\s+(\w{64})$", lock.read_text(), re.MULTILINE)
    assert [found["content"] for found in parts["ggml"]["hashes"]] == pinned
    assert parts["libstdc++"]["licenses"] == [{"expression": "GPL-3.0-or-later WITH GCC-exception-3.1"}]
    installed = [file for file in importlib.metadata.files("ollama_engine") or () if "sboms" in file.parts]
    assert [file.name for file in installed] == ["ollama_engine.cdx.json"]


def test_dependencies_are_those_of_the_extras_that_are_asked_for() -> None:
    assert not any(name.startswith("pytest") for name in foreign.dependencies())
    named = {re.split(r"[<>\[=]", name)[0] for name in foreign.dependencies("test", without=["llguidance"])}
    assert {"numpy", "pytest"} <= named
    assert not named & {"llguidance", "fastapi", "auditwheel", "ollama_engine"}


def test_a_suite_can_do_without_packages_and_extras_of_packages() -> None:
    wheel = Path("ollama_engine-1.2-cp313-cp313t-linux_x86_64.whl")
    lacking = suite.NO_WHEEL[suite.tag(wheel)]
    wanted = suite.packages(wheel, lacking)
    assert str(wheel.resolve()) in wanted
    assert {"uvicorn", "pytest", "numpy"} <= {re.split(r"[<>=]", name)[0] for name in wanted}  # no uvicorn[standard]
    assert not [name for name in wanted if name.startswith(lacking)]


def test_a_package_becomes_optional(tmp_path: Path) -> None:
    needed = "Name: a\nRequires-Dist: jinja2\nRequires-Dist: llguidance<2,>=1.9\n\nRequires-Dist: is text here\n"
    for name, text in (("a-1.dist-info/METADATA", needed), ("a.py", "pass")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    wheel = tmp_path / "a-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in ("a.py", "a-1.dist-info/METADATA"):
            archive.write(tmp_path / name, name)
    before = [(e.filename, e.date_time, e.compress_type) for e in zipfile.ZipFile(wheel).infolist()]
    build.make_optional(wheel, "llguidance", "format")
    with zipfile.ZipFile(wheel) as archive:
        assert [(e.filename, e.date_time, e.compress_type) for e in archive.infolist()] == before
        told = email.message_from_bytes(archive.read("a-1.dist-info/METADATA"))
    assert told.get_all("Requires-Dist") == ["jinja2", 'llguidance<2,>=1.9; extra == "format"']
    assert told.get_all("Provides-Extra") == ["format"]
    with pytest.raises(AssertionError, match="does not need numpy"):
        build.make_optional(wheel, "numpy", "x")


def test_a_wheel_without_a_licence_or_with_sources_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.c").touch()
    with pytest.raises(SystemExit, match=r"missing \[.*'py\.typed'.*'csrc/ggml/LICENSE'.*unwanted \['x\.c'\]"):
        check.check_contents(wheel_of(tmp_path, tmp_path / "x.c"))


def test_a_wheel_that_is_too_large_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x.txt").write_text("12")
    wheel = wheel_of(tmp_path, tmp_path / "x.txt")
    monkeypatch.setattr(check, "check_contents", lambda wheel: None)
    assert check.MOST_BYTES == 40_000_000
    monkeypatch.setattr(check, "MOST_BYTES", wheel.stat().st_size)
    check.main([str(wheel)])
    monkeypatch.setattr(check, "MOST_BYTES", wheel.stat().st_size - 1)
    with pytest.raises(SystemExit, match="bytes, allowed are"):
        check.main([str(wheel)])


@pytest.fixture
def matrix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is built for, by its program's path below `tmp_path`, where 3.13 is on PATH, and pyenv has 3.10 and 3.12."""
    programs = {"bin/python3.13": 0, "bin/python3.14": 1, "bin/python3.12": 127, "bin/python3.10": 127}
    programs |= {f"versions/3.10.{release}/bin/python3.10": 0 for release in ("9", "11", "10", "11rc2")}
    programs |= {"versions/3.12.1/bin/python3.12": 0}
    for name, status in programs.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\nexit {status}\n")
        path.chmod(0o755)
    built: list[str] = []

    def build_one(python: str, variants: str) -> Path:
        found = Path(shutil.which(python) or "nowhere")
        built.append(str(found.relative_to(tmp_path)))
        return found

    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    monkeypatch.setattr(build, "build", build_one)
    monkeypatch.setattr(build, "audited", lambda wheel, out: wheel)
    monkeypatch.setattr(old_symbols, "make", lambda folder: None)
    monkeypatch.setattr(sys, "argv", ["build.py", "--matrix"])
    return built


def test_releases_are_in_the_order_of_their_numbers() -> None:
    releases = ["3.14.0a7", "3.14.0b3", "3.14.0b4", "3.14.0rc2", "3.14.0rc10", "3.14.0", "3.14.1rc1", "3.14.10"]
    programs = [Path("versions", release, "bin/python3.14") for release in releases]
    for order in (programs, programs[::-1]):
        assert sorted(order, key=build._release) == programs


FOUND = ["versions/3.10.11/bin/python3.10", "versions/3.12.1/bin/python3.12", "bin/python3.13"]


def test_the_matrix_builds_for_the_pythons_that_run_and_names_the_others(
    matrix: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(check, "main", lambda wheels: None)
    build.main()
    assert matrix == FOUND
    missing = [line.partition(":")[0] for line in capsys.readouterr().out.splitlines() if ": missing" in line]
    assert missing == ["python3.11", "python3.14", "python3.14t"]


def test_a_wheel_that_fails_does_not_keep_the_others_from_being_built(
    matrix: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(wheels: list[str]) -> None:
        if "3.12" in wheels[0]:
            raise SystemExit("it has no licence")

    monkeypatch.setattr(check, "main", refuse)
    with pytest.raises(SystemExit, match=r"^failed for python3\.12$"):
        build.main()
    assert matrix == FOUND
    assert "python3.12: FAILED: it has no licence" in capsys.readouterr().out


def test_tests_run_with_each_wheel_of_the_matrix(
    matrix: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran: list[tuple[str, list[str]]] = []

    def tested(wheel: Path, python: str, tests: list[str]) -> None:
        assert Path(shutil.which(python) or "nowhere") == wheel
        ran.append((wheel.name, tests))
        if "3.12" in wheel.name:
            raise SystemExit("2 tests failed")

    monkeypatch.setattr(check, "main", lambda wheels: None)
    monkeypatch.setattr(suite, "run_tests", tested)
    monkeypatch.setattr(sys, "argv", [*sys.argv, "--tests=-n 2 tests"])
    with pytest.raises(SystemExit, match=r"^failed for python3\.12$"):
        build.main()
    assert ran == [(Path(name).name, ["-n", "2", "tests"]) for name in FOUND]
    told = capsys.readouterr().out
    assert "python3.12: FAILED: 2 tests failed" in told
    assert "python3.13: python3.13, tests passed" in told


@pytest.mark.parametrize("lock", ["", "t"])
def test_a_suite_imports_the_wheel_and_not_the_sources(
    lock: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    commands: list[list[str]] = []
    monkeypatch.setattr(suite, "FOLDER", tmp_path)
    monkeypatch.setattr(suite, "run", lambda *words, **options: commands.append([*map(str, words), str(options)]))
    monkeypatch.setattr(foreign, "COPIED", ("ollama_engine", "wheels", "LICENSE"))
    suite.run_tests(Path(f"a-1-cp313-cp313{lock}-linux_x86_64.whl"), "python3.13", ["tests/nn"])
    tree = tmp_path / f"suite-cp313{lock}/tree"
    assert sorted(path.name for path in tree.iterdir()) == ["LICENSE", "wheels"]
    venv, pip, pytest_ = commands
    assert venv[0] == "python3.13"
    assert any(word.endswith("linux_x86_64.whl" if lock else "linux_x86_64.whl[test]") for word in pip)
    assert (
        ("--without=tokenizers" in pytest_)
        == ("without huggingface_hub, llguidance, safetensors, tokenizers, " in capsys.readouterr().out)
        == bool(lock)
    )
    assert pytest_[0] == pip[0] == f"{tree.parent}/env/bin/python"
    assert pytest_[-2:] == ["tests/nn", str({"cwd": tree})]


@pytest.mark.parametrize(("given", "paths"), [
    (["-k", "a or b's", "tests/nn"], []),
    (["tests/wheels/test_wheels.py::test_x", "-x"], []),
    (["-n", "2"], arm64.TESTS),
    ([], arm64.TESTS),
])  # fmt: skip
def test_arguments_reach_pytest_in_another_root(
    given: list[str], paths: Sequence[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In their order, an option before its value, and as they are: shells read the command twice."""
    found = arm64.pytest_arguments(given)
    assert found == [*given, *paths]
    ran: list[str] = []
    monkeypatch.setattr(foreign, "run", lambda *words: ran.append(words[-1]))
    foreign.run_inside(Path("/root"), {"tree": ROOT}, "/bin", f"pytest {shlex.join(found)}")
    *_, shell, option, command = shlex.split(ran[0])
    assert (shell, option) == ("sh", "-c")
    assert shlex.split(command) == ["cd", "/tree", "&&", "pytest", *found]
