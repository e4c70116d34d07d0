"""The command line, as `ollama-engine` and `python -m ollama_engine` start it."""

from __future__ import annotations

import sys

INTERRUPTED = 130
"""`cli.errors.EXIT_INTERRUPTED`, which is not imported yet when this is needed."""

try:
    from ollama_engine.cli.main import program
except KeyboardInterrupt:  # Ctrl-C at the very start ends the program without a traceback, too
    sys.exit(INTERRUPTED)

if __name__ == "__main__":
    sys.exit(program())
