"""What our suite adds to pytest; tests/conftest.py registers it.

repeats.py       a second run of failed tests that depend on the speed of other processes
seeds.py         the seed of random tests: printed, and used again by the second run
key_suites.py    suites that must have run, in CI
not_run_here.py  what this CPU cannot run, counted
downloads.py     what tests need of the network, before the first of them runs
hang_guard.py    where a test cannot be ended, the run is

Under pytest-xdist, the process that gives out tests sums up what the others report.
"""
