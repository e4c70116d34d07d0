"""Answer: a request of a session, and which inputs the session has after it."""

from __future__ import annotations

from dataclasses import dataclass

from ollama_engine.runner.schedule.inputs import Inputs
from ollama_engine.runner.schedule.sequence import Generation

__all__ = ["Answer"]


@dataclass(slots=True)
class Answer:
    """A request whose inputs the session has not taken in yet."""

    generation: Generation
    before: Inputs | None = None
    """What the session goes back to. None from when the answer is known to be good: one cut off anywhere has failed."""

    @property
    def coming(self) -> bool:
        """Whether its caller may still take chunks from it."""
        channel = self.generation.channel
        return self.before is None and not (channel.done or channel.unwanted)

    def inputs(self) -> Inputs:
        """What the session holds after it, which has ended: its context, without tokens that its caller has not
        taken.
        """
        if self.before is not None:
            return self.before
        generation, context = self.generation, self.generation.context
        untaken = generation.n_generated - generation.channel.taken
        # A shift may have discarded some of them.
        return context.part(0, max(generation.answer_begin, len(context) - untaken))
