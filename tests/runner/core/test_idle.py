"""EngineCore: when an engine that has nothing to do looks through its tables."""

from __future__ import annotations

from typing import Any, cast
from unittest.mock import patch

from ollama_engine.runner.core.engine_core import CHECK_SECONDS, EngineCore
from ollama_engine.runner.observe.monitor import Monitor
from ollama_engine.runner.request.channel import RequestChannel
from ollama_engine.runner.request.inputs import Inputs
from ollama_engine.runner.schedule.row_readers import AllRows
from ollama_engine.runner.schedule.scoring import Scoring
from tests.runner.fakes import Events, FakeCache, FakeExecutor


class Task:
    def run(self, core: EngineCore) -> None:
        pass

    def fail(self, error: BaseException) -> None:
        raise error


def scoring(*, cancelled: bool = False) -> Scoring:
    channel = RequestChannel(Events())
    channel.cancelled = cancelled
    return Scoring(channel=channel, inputs=Inputs.text([1, 2]), num_ctx=8, row_reader=AllRows(2, 4))


def test_an_idle_engine_checks_what_changed_and_once_a_second_at_most() -> None:
    now = 100.0
    core = EngineCore(cast(Any, FakeExecutor()), cast(Any, FakeCache()), 2, Monitor(str, lambda: now))
    checked: list[float] = []
    with patch.object(core, "check", lambda: checked.append(now)):

        def work(*, after: float, task: bool = False, cancelled: bool = False) -> int:
            nonlocal now
            now += after
            if task:
                core.add_task(Task())
            else:
                core.add(scoring(cancelled=cancelled))
            while core.busy:
                core.step()
            return len(checked)

        assert work(after=0) == 1
        assert work(after=0) == 1
        assert work(after=CHECK_SECONDS / 2) == 1
        assert work(after=CHECK_SECONDS, cancelled=True) == 2, "of what was skipped"
        assert work(after=2 * CHECK_SECONDS, cancelled=True) == 2, "nothing has changed"
        assert work(after=0, task=True) == 3
