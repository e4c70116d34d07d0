"""Commands that ask a model: run, embed."""
