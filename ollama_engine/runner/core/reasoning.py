"""From a reasoning budget in texts to a constraint on tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from ollama_engine.runner.load.loading import Loaded
from ollama_engine.runner.request.reasoning import ReasoningBudget
from ollama_engine.runner.schedule.budgeted_reasoning import BudgetedReasoning
from ollama_engine.runner.schedule.marker_finder import LeadingMarker, MarkerFinder
from ollama_engine.runner.schedule.steering import Constraint

__all__ = ["budgeted_reasoning"]


def budgeted_reasoning(
    loaded: Loaded, budget: ReasoningBudget, answered: Sequence[int] = (),
    answer: Callable[[], Constraint] | None = None, *, uncounted: int = 0,
) -> BudgetedReasoning:  # fmt: skip
    """The constraint of one request. `answered`: tokens of the answer that have come; `answer`: makes that of what
    follows.

    The budget does not count the first `uncounted` of `answered`. Raises TokenizerError for texts that the vocabulary
    cannot express.
    """
    tokenizer = loaded.tokenizer
    encode = partial(tokenizer.encode, add_special=False, continues=True)
    token_bytes = partial(tokenizer.token_bytes, skip_special=False)
    made = BudgetedReasoning(
        budget.tokens,
        [] if budget.opens is None else encode(budget.opens),
        encode(budget.message + budget.closes),
        MarkerFinder(budget.closes, token_bytes),
        leading=None if budget.opens is None else LeadingMarker(budget.opens, token_bytes),
        n_vocab=min(loaded.model.n_vocab, tokenizer.n_vocab),
        ends=tokenizer.eog_ids,
        decode=partial(tokenizer.decode, continues=True),
        answer=answer,
    )
    made.resume(answered, uncounted)
    return made
