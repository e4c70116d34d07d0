"""Continuations of a prompt to log-probabilities."""
