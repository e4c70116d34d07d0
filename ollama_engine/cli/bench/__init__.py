"""`ollama-engine bench`: tokens per second of prompts and answers, load time and memory.

command   arguments, and the order of things
plan      what to measure
parts     one prompt and one answer through the executor, also behind a long context
streams   several callers at once, through the Engine
result    what was measured, as one JSON object
report    the same for people
plot      the same as a picture
"""

from __future__ import annotations

from ollama_engine.cli.bench.command import add_arguments, main
from ollama_engine.cli.bench.plan import Plan
from ollama_engine.cli.bench.result import peak_rss_bytes

__all__ = ["Plan", "add_arguments", "main", "peak_rss_bytes"]
