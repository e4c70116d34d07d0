"""The engine core: requests handed in, queued, stepped, and answered, on one thread."""
