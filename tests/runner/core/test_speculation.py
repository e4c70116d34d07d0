"""Which answers are drafted for, and which steps count as a measurement."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import create_autospec

from ollama_engine.runner.core.request_queue import RequestQueue
from ollama_engine.runner.core.speculation import Speculation
from ollama_engine.runner.core.step_output import StepOutput
from ollama_engine.runner.schedule.sequence import Generation
from ollama_engine.runner.schedule.steering import Draft


def test_nothing_is_drafted_for_an_answer_that_ends_with_the_step() -> None:
    """Else each end of an answer would scrap the step that is prepared for all others."""
    ends, goes_on = (cast(Any, create_autospec(Generation, key=key, decoding=True, draft=())) for key in range(2))
    queue = SimpleNamespace(
        running={0: ends, 1: goes_on},
        propose=lambda answers: {each.key: Draft((5,)) for each in answers if each is ends},
    )
    speculation = Speculation(cast(RequestQueue, queue), 32, lambda: 0.0)
    assert not speculation.draft([StepOutput(ends, reason="stop"), StepOutput(goes_on, (3,))])
    assert ends.draft == ()
    assert speculation.draft([StepOutput(ends, (4,)), StepOutput(goes_on, (3,))])
    assert ends.draft == (5,)
