"""Shared by the APIs: options, messages, prompts and what a stored model adds to them. No API imports another."""
