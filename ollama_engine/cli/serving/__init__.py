"""Commands of servers and workers: serve, ps, stop, runner, worker."""
