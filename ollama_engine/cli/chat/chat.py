"""`ollama-engine run` with a model that chats: a conversation of many turns, and commands that look after it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from ollama_engine.cli.chat.answer import report_end
from ollama_engine.cli.chat.chat_file import IMAGE, SavedChat, load_chat, save_chat, shown
from ollama_engine.cli.chat.chat_printer import ChatPrinter, PrintedAnswer
from ollama_engine.cli.chat.images import NamedImage, dropped_images, image_part, named_path, read_named
from ollama_engine.cli.chat.prompt_loop import PromptLoop, SlashCommand, set_command
from ollama_engine.cli.chat.settings import Settings
from ollama_engine.cli.tables import count, pairs
from ollama_engine.errors import ChatError, ContextOverflowError, ImageError, UnsupportedInputError
from ollama_engine.segments import Media, Tokens
from ollama_engine.size_texts import size

if TYPE_CHECKING:
    from ollama_engine.engine import Engine

__all__ = ["HINT", "ChatConversation"]

IMAGE_HINT = "It reads images: drop one here, or /image FILE."
HINT = 'Ask away; """ begins and ends a prompt of several lines. /help lists the commands; /bye or Ctrl-D leaves.'
SHOWS = "info, parameters, system, template, messages or prompt"


@dataclass
class ChatConversation:
    """One conversation with one model.

    Attributes:
        options: of `Engine.chat` that stay the same in every turn: template, think.
        messages: turns of user and assistant, without the system message.
        reads_images: whether the model does.
        images: those that the next message takes along.
    """

    engine: Engine
    printer: ChatPrinter
    settings: Settings
    options: dict[str, Any]
    system: str | None = None
    verbose: bool = False
    messages: list[dict[str, Any]] = field(default_factory=list)
    reads_images: bool = False
    images: list[NamedImage] = field(default_factory=list)
    _saved_as: set[str] = field(default_factory=set)

    def run(self) -> None:
        """Serve until the user leaves."""
        hint = f"{HINT} {IMAGE_HINT}" if self.reads_images else HINT
        PromptLoop(hint, self.answer, self._commands(), self.settings, self._take_dropped).run()

    def answer(self, text: str) -> None:
        """Stream the answer to a message. Raises as `Engine.chat_stream` does; the conversation is as before then.

        Where the context is full, the oldest turns leave the conversation, and the user is told. An answer that the
        user stops stays as far as it came. Images that wait go with the message; those that are refused do not wait on.
        """
        turn: dict[str, Any] = {"role": "user", "content": text}
        if self.images:
            turn["content"] = [*map(image_part, self.images), {"type": "text", "text": text}]
        try:
            answer = self._stream(turn)
        except ImageError:
            self.images = []
            raise
        self.images = []
        if answer.content or answer.last is not None:
            said = {"role": "assistant", "content": answer.content}
            self.messages += [turn, said | ({"reasoning": answer.reasoning} if answer.reasoning else {})]
        if answer.last is not None and answer.last.usage is not None:
            most = self.settings.params.max_tokens
            if answer.last.usage.completion_tokens == most and sys.stderr.isatty():
                print(f"(cut off at max_tokens {most})", file=sys.stderr)
            report_end(
                self.engine, answer.last.finish_reason, answer.last.usage, self.settings.params, self.settings.write,
                verbose=self.verbose,
            )  # fmt: skip

    def _take_dropped(self, line: str) -> str:
        """A line without the paths of images in it, which wait for the next message."""
        if not self.reads_images:
            return line
        images, left = dropped_images(line)
        for image in images:
            print(self._add(image), file=sys.stderr)
        return left

    def _add(self, image: NamedImage) -> str:
        self.images.append(image)
        return f"added image {image.name}"

    def _stream(self, turn: dict[str, Any]) -> PrintedAnswer:
        request = self.settings.request_options
        options = {option.name: getattr(request, option.name) for option in fields(request)}
        left = 0
        while True:
            messages = self._with_system([*self.messages[left:], turn])
            try:
                stream = self.engine.chat_stream(messages, self.settings.params, **self.options, **options)
            except ContextOverflowError:
                if left >= len(self.messages):
                    raise
                left += 2
                continue
            if left:
                del self.messages[:left]
                print(f"(the context is full: the oldest {left} messages left the conversation)", file=sys.stderr)
            with stream:
                return self.printer.show(stream)

    def _with_system(self, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return messages if self.system is None else [{"role": "system", "content": self.system}, *messages]

    # -- commands ------------------------------------------------------------------------------------------------------

    def _commands(self) -> dict[str, SlashCommand]:
        return {
            "/set": set_command(self.settings),
            "/system": SlashCommand("/system TEXT", "tell the model who it is; without TEXT, as its template has it",
                               self._set_system),
            "/image": SlashCommand("/image FILE", "show the model an image, with the next message", self._image),
            "/clear": SlashCommand("/clear", "forget the conversation, not the system message", self._clear),
            "/save": SlashCommand("/save FILE", "write the conversation to a new file", self._save),
            "/load": SlashCommand("/load FILE", "go on with a conversation from a file", self._load),
            "/show": SlashCommand("/show WHAT", f"print {SHOWS}", self._show),
        }  # fmt: skip

    def _set_system(self, text: str) -> str:
        self.system = text or None
        return "the system message is set" if text else "the system message is the template's"

    def _image(self, path: str) -> str:
        if not self.reads_images:
            raise UnsupportedInputError("the model reads text only")
        if not path:
            raise ImageError("/image takes the path of an image file")
        return self._add(read_named(named_path(path)))

    def _clear(self, _: str) -> str:
        self.messages, self.images = [], []
        return "the conversation is empty"

    def _save(self, name: str) -> str:
        save_chat(name, SavedChat(self.system, self.messages), again=name in self._saved_as)
        self._saved_as.add(name)
        return f"{len(self.messages)} messages are in {name}"

    def _load(self, name: str) -> str:
        saved = load_chat(name)
        if not self.reads_images and any(not isinstance(each["content"], str) for each in saved.messages):
            raise UnsupportedInputError(f"{name} has images in it, and the model reads text only")
        self.system, self.messages = saved.system, saved.messages
        return f"{len(self.messages)} messages from {name}"

    def _show(self, what: str) -> str:
        shows: dict[str, Callable[[], str]] = {
            "info": self._info,
            "parameters": lambda: str(self.settings),
            "system": lambda: self.system or "(as the template has it)",
            "template": self._template,
            "messages": self._shown_messages,
            "prompt": self._prompt,
        }
        if what not in shows:
            raise ChatError(f"/show takes {SHOWS}" + (f", got {what!r}" if what else ""))
        return shows[what]()

    def _info(self) -> str:
        info = self.engine.info
        return pairs((
            ("model", info.name), ("file", info.path), ("architecture", info.architecture),
            ("parameters", count(info.n_parameters)), ("size", size(info.file_bytes)),
            ("context", f"{info.num_ctx} tokens, trained for {info.context_length}"),
            ("vocabulary", f"{info.n_vocab} tokens"), ("images", "read" if info.reads_images else "not read"),
            ("flash attention", "on" if info.flash_attention else "off"), ("threads", str(info.threads)),
            ("devices", info.system), *(("kernels", line) for line in info.kernels),
        ))  # fmt: skip

    def _shown_messages(self) -> str:
        return "\n\n".join(f"{each['role']}: {shown(each['content'])}" for each in self.messages) or "(none)"

    def _template(self) -> str:
        chosen = self.options.get("template")
        chosen = getattr(chosen, "source", chosen)  # of one in Go's syntax
        return chosen if chosen and "{" in chosen else self.engine.chat_template(chosen)

    def _prompt(self) -> str:
        """All that the model has been told, as its template writes it."""
        segments = self.engine.apply_template(
            self._with_system(self.messages), add_generation_prompt=False, **self.options
        )
        return "".join(IMAGE if isinstance(segment, Media) else segment.text for segment in segments
                       if not isinstance(segment, Tokens))  # fmt: skip
