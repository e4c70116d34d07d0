"""A run of pytest whose test hangs in a way that pytest-timeout does not end."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.support.suite import slow_except

ROOT = Path(__file__).resolve().parents[2]
HANGS = {
    "after_its_timeout": (
        """
        def test_that_hangs():
            try:
                time.sleep(60)
            finally:
                time.sleep(60)
        """,
        "test_that_hangs",
    ),
    "cleaning_up_after_a_failure": (
        """
        @pytest.fixture
        def thing():
            yield
            time.sleep(60)

        def test_that_hangs(thing):
            raise AssertionError
        """,
        "thing",
    ),
    "in_c": (
        """
        def test_that_hangs():
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
            time.sleep(60)
        """,
        "test_that_hangs",
    ),
    "threads_after_the_last_test": (
        """
        def test_that_hangs():
            threading.Thread(target=time.sleep, args=(60,)).start()
        """,
        "_shutdown",
    ),
}


def run(code: str, folder: Path, *options: str, grace: float = 1) -> subprocess.CompletedProcess[str]:
    (folder / "conftest.py").write_text(f"from tests.plugins import hang_guard\nhang_guard.GRACE_SECONDS = {grace}\n")
    (folder / "test_it.py").write_text("import pytest, signal, threading, time\n" + textwrap.dedent(code))
    command = [sys.executable, "-m", "pytest", "-c", "/dev/null", "--rootdir", str(folder), "-p", "no:cacheprovider",
               "-p", "tests.plugins.hang_guard", "--timeout", "1", *options, str(folder)]  # fmt: skip
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=50)


@pytest.mark.parametrize("name", slow_except(HANGS, "after_its_timeout"))
def test_the_run_ends_and_says_where_the_test_is(name: str, tmp_path: Path) -> None:
    code, place = HANGS[name]
    done = run(code, tmp_path)
    assert done.returncode == 1, done
    assert "Timeout (0:00:0" in done.stderr
    assert f"in {place}\n" in done.stderr


def test_a_test_that_ends_is_left_alone(tmp_path: Path) -> None:
    # a busy machine takes seconds to end Python
    done = run("def test_it():\n    time.sleep(0.1)\n", tmp_path, grace=20)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
def test_a_process_of_xdist_that_is_done_waits_for_the_others(tmp_path: Path) -> None:
    pytest.importorskip("xdist")
    code = "def test_short(): pass\n\n\ndef test_long():\n    time.sleep(8)\n"
    done = run(code, tmp_path, "-n", "2", "--timeout", "30", grace=6)
    assert (done.returncode, done.stderr) == (0, "")
