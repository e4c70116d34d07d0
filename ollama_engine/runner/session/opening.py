"""Opens a session from a file."""

from __future__ import annotations

import os

from ollama_engine.errors import ContextOverflowError, Option, SessionFormatError
from ollama_engine.runner.core.submission import Submission
from ollama_engine.runner.request.inputs import Inputs
from ollama_engine.runner.session.file import read_session
from ollama_engine.runner.session.identity import ModelIdentity
from ollama_engine.runner.session.session import Session

__all__ = ["load_session"]


def load_session(
    engine: object, submission: Submission, identity: ModelIdentity, path: str | os.PathLike[str]
) -> Session:
    """The session of a file, its keys and values restored. Arguments and errors: `Engine.load_session`."""
    submission.thread.check_open()
    file = read_session(path, identity.fingerprint, submission.loaded.model.n_input_ids)
    if len(file.inputs) > submission.loaded.num_ctx:
        raise ContextOverflowError(
            f"the session has {len(file.inputs)} tokens, but ",
            Option("num_ctx"),
            f" is {submission.loaded.num_ctx}",
            advice=[("choose a larger ", Option("num_ctx"))],
        )
    _check_media(file.inputs, submission)
    session = Session(engine, submission, identity)
    try:
        session._restore(file)
    except BaseException:
        session.close()
        raise
    return session


def _check_media(inputs: Inputs, submission: Submission) -> None:
    """Raise SessionFormatError for images that the model cannot compute with."""
    executor, images = submission.loaded.executor, submission.loaded.images
    for span in inputs.media:
        if images is None or not executor.takes(span.item):
            raise SessionFormatError("the session has images that are not of this model")
