"""Scheduling, in plain values: which sequence computes which inputs in the next step; batches, text."""
