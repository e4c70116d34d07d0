"""The program `ollama-engine`: options, printing and exit codes around the Engine. Each subcommand has its own module.

`main` holds the parser and the one place where errors become messages; what a subcommand needs is imported when that
subcommand is chosen, so that `--version` and `--help` start no numpy and no backend.
"""
