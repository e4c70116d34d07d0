"""Dialects: how models write tool calls and reasoning, and parsers that read them while they stream in."""

from ollama_engine.chat.dialects.base import Dialect, Parser, new_call_id
from ollama_engine.chat.dialects.call_examples import call_example
from ollama_engine.chat.dialects.detection import DIALECTS, detect, named
from ollama_engine.chat.dialects.tools import ToolDefinition

__all__ = ["DIALECTS", "Dialect", "Parser", "ToolDefinition", "call_example", "detect", "named", "new_call_id"]
