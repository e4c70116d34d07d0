"""Running published programs, unmodified, in processes of their own: they leave connections open, warn, and change
settings of the process.
"""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

PATIENCE = 50
LITELLM_PYTHON = Path(__file__).parents[2] / ".venv-litellm" / "bin" / "python"
"""`make clients` gives litellm an environment of its own: it takes no openai from 3 on, and llm takes no other."""


def run(*arguments: str, python: str = sys.executable, **environment: str) -> str:
    """What a Python process prints."""
    done = subprocess.run(
        [python, *arguments], capture_output=True, text=True, timeout=PATIENCE, check=False,
        env={**os.environ, **environment}, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def run_litellm(script: str) -> None:
    """Run a script that imports litellm, or skip the test."""
    if LITELLM_PYTHON.exists():
        python = str(LITELLM_PYTHON)
    else:
        needs("litellm")
        python = sys.executable
    run("-c", script, python=python, LITELLM_LOCAL_MODEL_COST_MAP="True")  # it downloads prices otherwise


def needs(package: str) -> None:
    if find_spec(package) is None:
        pytest.skip(f"{package} is not installed (make clients)")
