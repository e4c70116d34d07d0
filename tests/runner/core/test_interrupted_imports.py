"""An import that is interrupted fails in the thread that was interrupted only."""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Iterator
from importlib.machinery import SourceFileLoader
from types import ModuleType
from unittest.mock import patch

import pytest

from ollama_engine import Choice, Engine, SamplingParams, demo
from ollama_engine.runner.core.submission import Submission
from ollama_engine.sample import constraints
from tests.support.waiting import WAIT_SECONDS, eventually, join

MODULE = "ollama_engine.sample.constraints.compiler"


@pytest.fixture
def not_imported() -> Iterator[None]:
    """The compiler of formats is not imported; behind the test it is the one that other tests know."""
    known = importlib.import_module(MODULE)
    with patch.dict(sys.modules), patch.object(constraints, "compiler", known):
        del sys.modules[MODULE]
        yield


@pytest.mark.usefixtures("not_imported")
def test_a_format_of_another_thread_is_compiled() -> None:
    importing, go = threading.Event(), threading.Event()
    execute = SourceFileLoader.exec_module
    raised: list[BaseException] = []

    def interrupted(loader: SourceFileLoader, module: ModuleType) -> None:
        if module.__name__ != MODULE or importing.is_set():
            return execute(loader, module)
        importing.set()
        assert go.wait(WAIT_SECONDS)
        raise KeyboardInterrupt

    def waits(thread: threading.Thread) -> bool:
        frame = sys._current_frames().get(thread.ident or 0)
        while frame is not None and frame.f_code is not Submission._compiler.__code__:
            frame = frame.f_back
        return frame is not None

    def ask() -> None:
        try:
            engine.generate("a", SamplingParams(max_tokens=4), format=Choice(["b"]))
        except BaseException as error:
            raised.append(error)

    with (
        Engine(demo.path(), num_ctx=64, threads=1) as engine,
        patch.object(SourceFileLoader, "exec_module", interrupted),
    ):
        threads = [threading.Thread(target=ask) for _ in range(2)]
        threads[0].start()
        assert importing.wait(WAIT_SECONDS)
        threads[1].start()
        eventually(lambda: waits(threads[1]))
        go.set()
        join(*threads)
    assert [type(error) for error in raised] == [KeyboardInterrupt]
