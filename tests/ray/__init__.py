"""Replicas on Ray."""
