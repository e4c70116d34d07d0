"""Tensors and graphs: made, planned, computed, and the storages that outlive them."""
