"""Sessions: texts that stay in the cache, and their files."""
