"""Routes that no other API has: tokenize, detokenize, apply-template, health, metrics, slots, trace."""

from __future__ import annotations
