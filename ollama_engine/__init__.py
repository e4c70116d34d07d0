"""An embeddable LLM inference engine: models written in Python, run at ggml speed.

Importing this package loads no backend and starts no thread.
"""

from __future__ import annotations
