"""Where a thread is: in the engine's own code, or in code of the program around it that may block for ever."""

from __future__ import annotations

import os
import sys
import threading
import traceback
from types import FrameType

import ollama_engine
from ollama_engine.runner.schedule.logits_processors import ProcessorChain

__all__ = ["outside_stack"]

PACKAGE = os.path.join(os.path.dirname(os.path.abspath(ollama_engine.__file__)), "")


def outside_stack(thread: threading.Thread) -> str:
    """The stack of a thread that runs a logits processor, a log handler or other code outside of this package.

    Empty where the thread runs this package's code: that waits for a computation, which ends however long it takes.
    """
    frame = sys._current_frames().get(thread.ident or 0)
    return "".join(traceback.format_stack(frame)) if frame is not None and _is_outside(frame) else ""


def _is_outside(frame: FrameType) -> bool:
    if not frame.f_code.co_filename.startswith((PACKAGE, "<frozen")):
        return True
    # A processor that is written in C has no frame: `lock.acquire`.
    return frame.f_code is ProcessorChain.apply.__code__
