"""SmolLM3.

    <think>
    They ask.
    </think>
    <tool_call>
    {"name": "weather", "arguments": {"city": "Paris"}}
    </tool_call>
    <code>weather(city="Paris")</code>

The first form is that of its "xml_tools", the second of its "python_tools". <code> may hold any Python, and HTML has it
too: what is not the call of a tool that was offered is content. Format: the model's card and template.
"""

from __future__ import annotations

from ollama_engine.chat.dialects.base import Dialect
from ollama_engine.chat.dialects.hermes import HERMES
from ollama_engine.chat.dialects.python_calls import PythonSection

__all__ = ["SMOLLM3"]

SMOLLM3 = Dialect(
    "smollm3",
    sections={**HERMES.sections, "<code>": PythonSection("</code>", certain=False)},
    calls_in_thinking=HERMES.calls_in_thinking,
    turn_ends=("<|im_end|>",),
    forms=HERMES.forms,
)
