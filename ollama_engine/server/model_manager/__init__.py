"""Which models are loaded: on demand, shared, kept alive, and unloaded for others."""
