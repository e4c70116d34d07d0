"""`python -m ollama_engine.selftest`: whether this installation computes on this CPU what it should, in seconds.

Every kernel that this CPU runs is compared with plain C bit by bit, plain C and ggml with numpy, and the packaged
models' answers with those that every CPU gives. Each check is a line; the exit code is 1 where one fails.
"""
