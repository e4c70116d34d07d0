"""Conversations: a model's template and dialect around a request, and what comes back."""
