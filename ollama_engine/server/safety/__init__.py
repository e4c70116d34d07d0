"""Limits on clients: hosts and origins, API keys, sizes and times of what clients send."""

from __future__ import annotations
