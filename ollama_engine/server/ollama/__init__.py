"""Ollama's API."""

from __future__ import annotations
