"""Processes that do one thing each, so that a driver that fails ends no other."""

from __future__ import annotations

import subprocess

__all__ = ["status_of"]


def status_of(process: subprocess.Popen[str], seconds: float) -> int | str:
    """How it has ended: its exit status, or that it took longer than so many seconds, and was killed."""
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return f"nothing for {seconds:.0f} s"
