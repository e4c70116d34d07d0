"""Random tests, all of which draw by hypothesis: no limits of time, and a new seed for each run, printed.

The other tests draw with fixed seeds. `--hypothesis-seed=N` takes N; a run of what failed last (`--repeat-failed`,
`--last-failed`, `--failed-first`) takes the last run's. With a seed, hypothesis does not read its database of failed
examples.
"""

from __future__ import annotations

import importlib
import secrets
import sys
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# On a busy machine one example takes many times as long as the others.
settings.register_profile("ollama_engine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("ollama_engine")

KEPT = "ollama_engine/seed"
AGAIN = ("repeat_failed", "lf", "failedfirst")
"""Options of runs that take the seed of the last one."""


def pytest_configure(config: pytest.Config) -> None:
    """Before hypothesis reads its option."""
    if not hasattr(config.option, "hypothesis_seed"):
        return
    cache: pytest.Cache | None = getattr(config, "cache", None)
    config.option.hypothesis_seed = _seed(config, cache)
    if cache is not None:
        cache.set(KEPT, config.option.hypothesis_seed)


def _seed(config: pytest.Config, cache: pytest.Cache | None) -> str:
    if hasattr(config, "workerinput"):
        return str(config.workerinput[KEPT])
    seed = config.option.hypothesis_seed
    if seed is None and cache is not None and any(getattr(config.option, name, False) for name in AGAIN):
        seed = cache.get(KEPT, None)
    return str(secrets.randbits(32) if seed is None else seed)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """pytest-xdist starts its processes with the options that stood on the command line."""
    node.workerinput[KEPT] = node.config.option.hypothesis_seed


@pytest.hookimpl(tryfirst=True)  # hypothesis looks for them in the same hook
def pytest_collection_modifyitems() -> None:
    """hypothesis would draw constants of our modules, too, as far as they are loaded: others in each process."""
    if "hypothesis" in sys.modules:
        providers = importlib.import_module("hypothesis.internal.conjecture.providers")
        if hasattr(providers, "is_local_module_file"):  # an interior of its own, new in 6.131
            providers.is_local_module_file = lambda path: False


def pytest_report_header(config: pytest.Config) -> str:
    return f"seed of random tests: --hypothesis-seed={getattr(config.option, 'hypothesis_seed', None)}"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, exitstatus: int, config: pytest.Config) -> None:
    if exitstatus:
        terminalreporter.write_line(pytest_report_header(config), yellow=True)
