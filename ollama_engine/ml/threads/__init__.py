"""Thread pools of a backend, and how many threads are worth waking while other programs use the CPUs."""
