"""A soak: many clients at once, for minutes, whose answers are compared with those computed alone. See __main__.py."""
