"""Answer: a running request of a session, and the inputs that the session has after it."""

from __future__ import annotations

from dataclasses import dataclass

from ollama_engine.errors import ConfigError, Option
from ollama_engine.runner.request.answer_options import SAMPLING
from ollama_engine.runner.request.inputs import Inputs
from ollama_engine.runner.request.options import RequestKeywords
from ollama_engine.runner.schedule.sequence import Generation

__all__ = ["SessionAnswer", "refuse_answer_options"]


@dataclass(slots=True)
class SessionAnswer:
    """A request whose tokens the session has not taken over yet."""

    generation: Generation
    before: Inputs | None = None
    """The inputs to return to if the answer fails. None once it is complete: an answer cut off before has failed."""

    @property
    def coming(self) -> bool:
        """Whether its caller may still read chunks."""
        channel = self.generation.channel
        return self.before is None and not (channel.done or channel.unwanted)

    def inputs(self) -> Inputs:
        """The session's inputs after this answer, which has ended: its context, without tokens that its caller has not
        read.
        """
        if self.before is not None:
            return self.before
        generation, context = self.generation, self.generation.context
        untaken = generation.n_generated - generation.channel.taken
        # A shift may have discarded some of them.
        return context.part(0, max(generation.answer_begin, len(context) - untaken))


def refuse_answer_options(options: RequestKeywords) -> None:
    """Raise ConfigError for options that are about an answer."""
    given = {
        **{name: True for name in options if name in SAMPLING},
        "format": options.get("format") is not None,
        "reasoning_budget": options.get("reasoning_budget") is not None,
        "logits_processors": bool(options.get("logits_processors")),
    }
    for name, is_given in given.items():
        if is_given:
            raise ConfigError("append asks for no answer: it takes no ", Option(name))
