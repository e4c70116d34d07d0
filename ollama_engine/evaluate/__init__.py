"""Measuring a loaded model: perplexity, and how long prompts and answers take."""
