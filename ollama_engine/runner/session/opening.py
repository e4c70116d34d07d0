"""Opening a session that a file holds."""

from __future__ import annotations

import os

from ollama_engine.errors import ContextOverflowError, Option
from ollama_engine.runner.core.submission import Desk
from ollama_engine.runner.session.file import read_session
from ollama_engine.runner.session.session import Session

__all__ = ["load_session"]


def load_session(engine: object, desk: Desk, path: str | os.PathLike[str]) -> Session:
    """See `Engine.load_session`."""
    desk.loop.check_open()
    found = read_session(path, desk.fingerprint, desk.loaded.model.n_vocab)
    if len(found.tokens) > desk.loaded.num_ctx:
        raise ContextOverflowError(
            f"the session has {len(found.tokens)} tokens, but ",
            Option("num_ctx"),
            f" is {desk.loaded.num_ctx}",
            advice=[("choose a larger ", Option("num_ctx"))],
        )
    session = Session(engine, desk)
    try:
        session._restore(found)
    except BaseException:
        session.close()
        raise
    return session
