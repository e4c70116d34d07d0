"""Speculative decoding: drafts that a step verifies, and whether they pay on this machine."""
