"""The command line, as `ollama-engine` and `python -m ollama_engine` start it."""

from __future__ import annotations

import sys

INTERRUPTED = 130
"""`cli.errors.EXIT_INTERRUPTED`, which is not imported yet when this is needed."""


def main() -> int:
    """Run the program, and return its exit code. Ctrl-C while it is imported ends it without a traceback, too."""
    try:
        from ollama_engine.cli.main import program  # noqa: PLC0415 (inside of `try`)

        return program()
    except KeyboardInterrupt:
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
