"""The program `ollama-engine`: options, printing and exit codes around the Engine. Each subcommand has its own module,
in the room of its kind: `chat`, `models`, `serving`, `measure`.

`main` has the parser, and is the only place that turns errors into messages. A subcommand's imports happen when it is
chosen, so `--version` and `--help` load neither numpy nor a backend.
"""
