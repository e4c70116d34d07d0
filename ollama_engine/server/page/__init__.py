"""The page for a browser: a chat, and a live view of the engines."""

from __future__ import annotations
