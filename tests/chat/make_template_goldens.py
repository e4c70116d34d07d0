"""Writes template_goldens.json: what transformers makes of every conversation by every template.

    pip install "transformers>=5,<6" jinja2 && python -m tests.chat.make_template_goldens

The templates belong to others, and so does most of what they render: the file holds hashes, and None where transformers
raises. `--show TEMPLATE CONVERSATION` prints both texts.
"""

from __future__ import annotations

import hashlib
import json
import sys
from datetime import datetime
from pathlib import Path
from typing import Any
from unittest.mock import patch

from ollama_engine.chat.template import ChatTemplate
from ollama_engine.errors import ChatError
from tests.chat.conversations import CONVERSATIONS, NOW, TOKENS
from tests.chat.injection import asked, hostile
from tests.chat.own_templates import OWN
from tests.chat.real_templates import sources

FILE = Path(__file__).with_name("template_goldens.json")


class Clock(datetime):
    @classmethod
    def now(cls, tz: Any = None) -> datetime:  # type: ignore[override]
        return NOW


def digest(text: str | None) -> str | None:
    return None if text is None else hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def theirs(source: str, name: str) -> str | None:
    """Does what `apply_chat_template` does: keys that are None go, then the template is rendered."""
    messages, options = CONVERSATIONS[name]
    return apply(source, {"messages": messages, "add_generation_prompt": True, **options})


def apply(source: str, given: dict[str, Any]) -> str | None:
    """The text, or None where transformers raises."""
    from transformers.utils import chat_template_utils  # noqa: PLC0415 (in the reference extra only)

    options = dict(given)
    messages, variables = options.pop("messages"), TOKENS | options.pop("variables", {})
    chat = [{key: value for key, value in message.items() if value is not None} for message in messages]
    try:
        with patch.object(chat_template_utils, "datetime", Clock):
            rendered, _ = chat_template_utils.render_jinja_template(
                [chat], chat_template=source, **options, **variables
            )
    except Exception:
        return None
    return str(rendered[0])


def ours(template: ChatTemplate, name: str) -> str | None:
    messages, options = CONVERSATIONS[name]
    try:
        return template.render(messages, **{"add_generation_prompt": True, **options})
    except ChatError:
        return None


def main() -> None:
    if sys.argv[1:2] == ["--show"]:
        source = sources()[sys.argv[2]]
        print(repr(theirs(source, sys.argv[3])), repr(ours(ChatTemplate(source, TOKENS, lambda: NOW), sys.argv[3])))
        return
    real = {
        template: {name: digest(theirs(source, name)) for name in CONVERSATIONS}
        for template, source in sources().items()
    }
    own = {name: theirs(source, "calls") for name, source in OWN.items()}
    typed = {
        name: [digest(text) for text in hostile(name, lambda *given: apply(source, asked(*given)))]  # noqa: B023
        for name, source in sources().items()
    }
    FILE.write_text(
        json.dumps({"real": real, "own": own, "hostile": typed}, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
    )


if __name__ == "__main__":
    main()
