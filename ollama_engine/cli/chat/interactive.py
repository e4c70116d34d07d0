"""`ollama-engine run --raw`, and models that cannot chat: the model continues every line, each a text of its own."""

from __future__ import annotations

from collections.abc import Sequence

from ollama_engine.cli.chat.answer import Answerer
from ollama_engine.cli.chat.prompt_loop import PromptLoop, set_command
from ollama_engine.cli.chat.settings import Settings

__all__ = ["HINT", "continue_texts"]

HINT = "Every line is a prompt of its own. /help lists the commands; /bye or Ctrl-D leaves."


def continue_texts(answerer: Answerer, settings: Settings, images: Sequence[bytes] = ()) -> None:
    """Serve until the user leaves. The first text has the images."""
    left = list(images)

    def answer(text: str) -> None:
        answerer.answer(text, settings.params, settings.request_options, left)
        left.clear()

    PromptLoop(HINT, answer, {"/set": set_command(settings)}, settings).run()
