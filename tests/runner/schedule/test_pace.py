from __future__ import annotations

from ollama_engine.runner.schedule.pace import PROMPT_ROWS, prompt_tokens_beside


def test_one_prompt_fills_a_short_step() -> None:
    assert [answers + prompt_tokens_beside(answers, 1) for answers in (1, 4, 31)] == [PROMPT_ROWS] * 3


def test_more_prompts_make_it_longer_up_to_a_limit() -> None:
    limits = [prompt_tokens_beside(2, prompts) for prompts in range(9)]
    assert limits == sorted(limits)
    assert limits[4] + 2 == limits[8] + 2 == 4 * PROMPT_ROWS


def test_prompts_go_on_beside_many_answers() -> None:
    assert all(prompt_tokens_beside(answers, prompts) > 0 for answers in (64, 1000) for prompts in (0, 1, 9))
