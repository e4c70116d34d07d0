"""Muse, whose messages say to whom they go.

     to=self<|message|>They ask.<|eom|><|start|>assistant to=weather<|message|><atem:function_calls>
    <atem:invoke name="weather">
    <atem:parameter name="city">Paris</atem:parameter>
    </atem:invoke>
    </atem:function_calls><|eom|>

A message to itself is reasoning. Format: the templates.
"""

from __future__ import annotations

from ollama_engine.chat.dialects.answer import Answer
from ollama_engine.chat.dialects.base import Dialect
from ollama_engine.chat.dialects.marked_calls import MarkedCalls
from ollama_engine.chat.dialects.scanner import WORD, Reading, markers
from ollama_engine.chat.dialects.tagged_calls import TaggedCall
from ollama_engine.chat.dialects.tool_grammar import EMPTY, AnswerOptions, Grammar, ToolChoice

__all__ = ["MUSE"]

_ENDS = ("<|eom|>", "<|eot|>")


def _read(dialect: Dialect, answer: Answer) -> Reading[None]:
    """Read messages: a recipient, then reasoning, or content with calls in it. Text outside is content."""
    recipient = "self" if answer.reasoning_open else (yield from _recipient(answer))
    while True:
        if recipient is None:
            if (yield from answer.until(markers("<|start|>"), answer.content)) is None:
                return
            yield from answer.accept("assistant")
            recipient = yield from _recipient(answer)
            continue
        if recipient == "self":
            yield from answer.until(markers(*_ENDS), answer.reasoning)
        else:
            yield from answer.body(dialect.sections, ends=_ENDS)
        recipient = None


def _recipient(answer: Answer) -> Reading[str | None]:
    """Read whom a message is for, and the marker of its text; None where no message begins."""
    answer.record()
    recipient: str | None = "user"
    if (yield from answer.accept(" to=")):
        recipient = yield from answer.run(WORD)
    if (yield from answer.accept("<|message|>")) is None:
        answer.content(answer.recorded())
        return None
    answer.recorded()
    return recipient


_CALL = TaggedCall(name_end='">', key='<atem:parameter name="', key_end='">', value_end="</atem:parameter>", gap="\n")
_BEGIN = '<atem:function_calls>\n<atem:invoke name="'
_END = "</atem:invoke>\n</atem:function_calls>"


def _answer_grammar(grammar: Grammar, options: AnswerOptions) -> str:
    """Reasoning and calls, a message each; where none is required, messages to the user as well."""
    rest = f"{grammar.any_text('<|eom|>')} {grammar.text('<|start|>assistant')}"
    talks = not options.required and options.value is None
    earlier = " | ".join(f"{grammar.text(f' to={to}<|message|>')} {rest}" for to in ("self", "user")[: 1 + talks])
    calls = [[f" to={tool.name}<|message|>{_BEGIN}", *_CALL.write(tool), _END] for tool in options.tools]
    call = grammar.rule(grammar.part(ToolChoice(calls)))
    if options.parallel:
        call = f"{call} ({grammar.text('<|eom|><|start|>assistant')} {call})*"
    before = f"{rest if options.reasoning_open else EMPTY} ({earlier})*"
    said = "TEXT?" if options.value is None else grammar.part(options.value)
    answer = "" if options.required else f" | {grammar.text(' to=user<|message|>')} {said}"
    return f"{before} ({call}{answer})"


MUSE = Dialect(
    "muse",
    thinking=((" to=self<|message|>", "<|eom|>"),),
    sections={
        "<atem:function_calls>": MarkedCalls(
            _CALL, '<atem:invoke name="', "</atem:invoke>", section_end="</atem:function_calls>"
        )
    },
    turn_ends=("<|eot|>",),
    read=_read,
    answer_grammar=_answer_grammar,
)
