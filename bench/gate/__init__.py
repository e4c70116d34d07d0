"""The performance gate: ratios of one run on this machine. `python -m bench.gate`, or `make bench-check`."""
