"""Prompts that begin alike are compared once, however long one of them is computed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ollama_engine.runner.request.inputs import Inputs
from ollama_engine.runner.schedule import shared_prompts
from ollama_engine.runner.schedule.shared_prompts import MOST_KEPT, WORTH, shares_soon

TEXT = list(range(1000))


def asked(tokens: list[int], submitted: int = 0, **options: Any) -> Any:
    """A request as far as it is looked at."""
    return SimpleNamespace(
        inputs=Inputs(np.array(tokens, np.int32)), n_inputs=len(tokens), submitted=submitted, rows_from=None,
        pinned=None, leaves_history=True, checkpoints=(), shares=None, slot=None, ended=False,
        options=SimpleNamespace(**{"cache": True, "priority": 0} | options),
    )  # fmt: skip


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The lengths of the prompts that are compared."""
    lengths: list[int] = []
    common = shared_prompts._common

    def noted(a: Inputs, b: Inputs, least: int, most: int) -> int:
        lengths.append(most)
        return common(a, b, least, most)

    monkeypatch.setattr(shared_prompts, "_common", noted)
    return lengths


def soon(request: Any, *running: Any) -> bool:
    return shares_soon(request, running, lambda _: 0)


def test_prompts_are_compared_once(compared: list[int]) -> None:
    leader, waiting = asked([*TEXT, 1]), [asked([*TEXT, n, n]) for n in range(2, 12)]
    leader.slot = 0
    for leader.submitted in range(0, 1000, 100):
        assert all(soon(request, leader) for request in waiting)
    assert len(compared) == len(waiting)
    leader.submitted = 1000
    assert not any(soon(request, leader) for request in waiting)
    assert not any(request.shares for request in waiting), "nothing of a request that has begun is held"


@pytest.mark.parametrize("change", [
    {"slot": None}, {"ended": True}, {"inputs": Inputs(np.array(TEXT[::-1], np.int32))}, {"priority": -1},
], ids=lambda change: next(iter(change)))  # fmt: skip
def test_they_are_compared_again_where_the_first_one_has_changed(compared: list[int], change: dict[str, Any]) -> None:
    leader, request = asked([*TEXT, 1]), asked([*TEXT, 2])
    leader.slot = 0
    assert soon(request, leader)
    if "priority" in change:
        leader.options.priority = -1
    else:
        vars(leader).update(change)
    running = [] if leader.slot is None or leader.ended else [leader]
    assert not soon(request, *running)
    assert request.shares is None


def test_as_many_states_are_kept_as_one_prompt_may_have() -> None:
    leader = asked([*TEXT, 1])
    leader.slot = 0
    for n in range(WORTH, 1000, 10):
        assert soon(asked([*TEXT[:n], 5000, 5001]), leader)
    assert leader.checkpoints == tuple(range(WORTH, 1000, 10))[:MOST_KEPT]
