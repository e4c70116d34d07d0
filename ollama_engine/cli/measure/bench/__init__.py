"""`ollama-engine bench`: tokens per second of prompts and answers, load time and memory.

command   arguments, and the order of measurements
plan      what to measure
parts     one prompt and one answer through the executor, also behind a long context
streams   several callers at once, through the Engine
result    the results as one JSON object
report    the results as text
plot      the results as a picture
"""

from __future__ import annotations

from ollama_engine.cli.measure.bench.command import add_arguments, main
from ollama_engine.cli.measure.bench.plan import BenchPlan
from ollama_engine.cli.measure.bench.result import peak_rss_bytes

__all__ = ["BenchPlan", "add_arguments", "main", "peak_rss_bytes"]
