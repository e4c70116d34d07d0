"""Commands about model files and the store: list, show, pull, create, convert ..."""
