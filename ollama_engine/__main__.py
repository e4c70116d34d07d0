"""`python -m ollama_engine` is the command line."""

from __future__ import annotations

import sys

from ollama_engine.cli.main import program

if __name__ == "__main__":
    sys.exit(program())
