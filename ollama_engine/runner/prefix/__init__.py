"""Which inputs' keys and values the cache holds, who may reuse them, and who has pinned them."""
