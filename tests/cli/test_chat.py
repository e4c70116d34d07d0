"""`run` with a model that chats: the conversation and its commands against a fake engine, then in a real terminal."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ollama_engine.cli.chat.chat import ChatConversation
from ollama_engine.cli.chat.chat_printer import ChatPrinter
from ollama_engine.cli.chat.settings import Settings, set_here
from ollama_engine.cli.errors import Flags
from ollama_engine.errors import ChatError, ContextOverflowError
from ollama_engine.runner.chat.results import ChatChunk
from ollama_engine.runner.request.options import RequestOptions
from ollama_engine.runner.request.results import Usage
from ollama_engine.sample import SamplingParams
from ollama_engine.segments import Text
from tests.cli.program import Terminal, program
from tests.cli.typed_lines import type_lines
from tests.support.tiny import write_tiny_llama

USAGE = Usage(3, 2, 0, 0.0, 0.0, 0.0)
TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"


class FakeStream:
    """Gives these chunks, or raises them, and then the last one."""

    def __init__(self, chunks: list[ChatChunk | BaseException]) -> None:
        self.chunks = chunks

    def __enter__(self) -> FakeStream:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def __iter__(self) -> Iterator[ChatChunk]:
        for chunk in self.chunks:
            if isinstance(chunk, BaseException):
                raise chunk
            yield chunk
        yield ChatChunk(finish_reason="stop", usage=USAGE)


class FakeEngine:
    """Answers "yes"; a conversation of more than `most` messages does not fit."""

    info = SimpleNamespace(
        name="a fake", path="fake.gguf", architecture="llama", n_parameters=1_200_000, file_bytes=2 << 20, num_ctx=512,
        context_length=1024, n_vocab=320, reads_images=False, flash_attention=True, threads=2, system="CPU",
        kernels=("q8_0: spread for 1 rows",),
    )  # fmt: skip

    def __init__(self, most: int = 100) -> None:
        self.asked: list[list[dict[str, str]]] = []
        self.most = most
        self.chunks: list[ChatChunk | BaseException] = [ChatChunk("ye"), ChatChunk("s")]

    def chat_stream(self, messages: list[dict[str, str]], params: SamplingParams, **options: Any) -> Any:
        if len(messages) > self.most:
            raise ContextOverflowError("does not fit")
        self.asked.append(messages)
        return FakeStream(self.chunks)

    def chat_template(self, name: str | None = None) -> str:
        return TEMPLATE

    def apply_template(self, messages: list[dict[str, str]], **options: Any) -> list[Text]:
        return [Text(f"<{message['role']}>{message['content']}") for message in messages]


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
def talk(engine: FakeEngine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Types lines; returns the conversation, standard output and what was told."""

    def run(*lines: str | BaseException, printer: ChatPrinter | None = None) -> tuple[ChatConversation, str, str]:
        type_lines(monkeypatch, lines)
        settings = Settings(SamplingParams(), RequestOptions(), set_here(Flags()))
        shown = printer or ChatPrinter(reasoning=False, dim=False)
        chat = ChatConversation(engine, shown, settings, {})  # type: ignore[arg-type]  # a fake
        chat.run()
        out, err = capsys.readouterr()
        return chat, out, err.replace(">>> ", "")

    return run


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


YES = {"role": "assistant", "content": "yes"}


# -- turns -------------------------------------------------------------------------------------------------------------


def test_each_turn_sees_those_before(talk, engine: FakeEngine) -> None:
    chat, out, _ = talk("one", "", "two")
    assert engine.asked == [[user("one")], [user("one"), YES, user("two")]]
    assert chat.messages == [user("one"), YES, user("two"), YES]
    assert out == "yes\nyes\n"


def test_prompts_of_several_lines(talk, engine: FakeEngine) -> None:
    talk('"""one', "  two", 'three"""', '"""/set is no command here"""', '"""', "four", '"""')
    said = [messages[-1]["content"] for messages in engine.asked]
    assert said == ["one\n  two\nthree", "/set is no command here", "four"]


def test_the_oldest_turns_leave_a_full_context(talk, engine: FakeEngine) -> None:
    engine.most = 4
    chat, _, told = talk("/system Be brief.", "one", "two", "three")
    assert engine.asked[-1] == [{"role": "system", "content": "Be brief."}, user("two"), YES, user("three")]
    assert "(the context is full: the oldest 2 messages left the conversation)" in told
    assert chat.messages == [user("two"), YES, user("three"), YES]


def test_a_message_that_fits_by_no_means_changes_nothing(talk, engine: FakeEngine) -> None:
    engine.most = 0
    chat, _, told = talk("one")
    assert "error: does not fit" in told
    assert chat.messages == []


def test_an_answer_that_is_stopped_stays_as_far_as_it_came(talk, engine: FakeEngine) -> None:
    engine.chunks = [ChatChunk("ye"), KeyboardInterrupt()]
    chat, out, _ = talk("one")
    assert chat.messages == [user("one"), {"role": "assistant", "content": "ye"}]
    assert out == "ye\n"
    engine.chunks = [KeyboardInterrupt()]
    assert talk("one")[0].messages == [], "nothing was answered"


def test_ctrl_c_at_the_prompt(talk, engine: FakeEngine) -> None:
    _, _, told = talk(KeyboardInterrupt(), "one", KeyboardInterrupt(), "two")
    assert len(engine.asked) == 2
    assert told.count("Ctrl-C again") == 2
    with pytest.raises(KeyboardInterrupt):
        talk(KeyboardInterrupt(), KeyboardInterrupt())


# -- reasoning ---------------------------------------------------------------------------------------------------------

THOUGHTS = [ChatChunk(reasoning="hm"), ChatChunk(reasoning="m"), ChatChunk("\n\nyes")]


@pytest.mark.parametrize(
    ("printer", "out"),
    [
        (ChatPrinter(reasoning=True, dim=True), "\x1b[2mhm\x1b[0m\x1b[2mm\x1b[0m\n\nyes\x1b[0m\n"),
        (ChatPrinter(reasoning=True, dim=False), "hmm\n\nyes\n"),
        (ChatPrinter(reasoning=False, dim=False), "yes\n"),
    ],
    ids=["dim", "plain", "hidden"],
)
def test_reasoning(talk, engine: FakeEngine, printer: ChatPrinter, out: str) -> None:
    engine.chunks = [*THOUGHTS]
    chat, shown, _ = talk("one", printer=printer)
    assert shown == out
    assert chat.messages[-1]["reasoning"] == "hmm"


# -- commands ----------------------------------------------------------------------------------------------------------


def test_clear_and_system(talk, engine: FakeEngine) -> None:
    talk("/system Be brief.", "one", "/clear", "two", "/system", "/clear", "three")
    system = {"role": "system", "content": "Be brief."}
    assert engine.asked == [[system, user("one")], [system, user("two")], [user("three")]]


def test_save_and_load(talk, engine: FakeEngine, tmp_path: Path) -> None:
    path = tmp_path / "chat.json"
    _, _, told = talk("/system Be brief.", "Grüße", f"/save {path}", f"/save {path}", "/save")
    assert told.count("2 messages are in") == 2, "its own file may be written again"
    assert "exists; give another name" in talk("x", f"/save {path}")[2]
    assert "/save takes the name of a file" in told
    saved = json.loads(path.read_text(encoding="utf-8"))
    assert saved == {"messages": [{"role": "system", "content": "Be brief."}, user("Grüße"), YES]}
    chat, _, told = talk(f"/load {path}", "on")
    assert "2 messages from" in told
    assert (chat.system, chat.messages[:3]) == ("Be brief.", [user("Grüße"), YES, user("on")])


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (None, "cannot be read: No such file"),
        ("{", "is no JSON file"),
        ("[]", 'there is no list of "messages"'),
        ('{"messages": [1]}', "messages[0] has a role (user, assistant) and as content a text"),
        ('{"messages": [{"role": "user", "content": 3}]}', "messages[0] has a role"),
        ('{"messages": [{"role": "system", "content": "x"}, {"role": "system", "content": "x"}]}', "messages[1]"),
        ("\udcff", "is no JSON file in UTF-8"),
        ("[" * 100_000, "is no JSON file"),
    ],
)
def test_what_is_no_conversation(talk, tmp_path: Path, text: str | None, why: str) -> None:
    path = tmp_path / "x.json"
    if text is not None:
        path.write_text(text, encoding="utf-8", errors="surrogateescape")
    chat, _, told = talk("one", f"/load {path}")
    assert why in told
    assert len(chat.messages) == 2, "the conversation is as before"


def test_files_of_a_user_that_is_none(talk) -> None:
    _, _, told = talk("one", "/load ~nobody2/x", "/save ~nobody2/x")
    assert "~nobody2/x cannot be read: No such file" in told
    assert "~nobody2/x cannot be written: No such file" in told


def test_show(talk) -> None:
    _, _, told = talk(
        "one", "/show info", "/show messages", "/show prompt", "/show template", "/show system", "/show x"
    )
    assert re.search(r"^model +a fake\nfile +fake.gguf\n", told, flags=re.MULTILINE)
    assert re.search(r"^parameters +1.20 M$", told, flags=re.MULTILINE)
    assert re.search(r"^context +512 tokens, trained for 1024$", told, flags=re.MULTILINE)
    assert "user: one\n\nassistant: yes\n" in told
    assert "<user>one<assistant>yes\n" in told
    assert TEMPLATE in told
    assert "(as the template has it)" in told
    assert "/show takes info, parameters, system, template, messages or prompt, got 'x'" in told
    assert "messages or prompt\n" in talk("/show")[2]


def test_help_and_unknown_commands(talk) -> None:
    _, _, told = talk("/help", "/fly", "/set temperature 0.5", "/set")
    for command in (
        "/set NAME VALUE",
        "/system TEXT",
        "/clear",
        "/save FILE",
        "/load FILE",
        "/show WHAT",
        "/bye",
        '"""',
    ):
        assert command in told
    assert "there is no command /fly" in told
    assert "temperature is 0.5" in told
    assert "temperature        0.5" in told
    _, _, told = talk("/set num_ctx 128", "/set temprature 1", "/exit", "never asked")
    assert "num_ctx is fixed when the model is loaded; start with --num-ctx" in told
    assert "did you mean temperature?" in told


def test_an_error_of_the_engine_is_told(talk, engine: FakeEngine) -> None:
    engine.chunks = [ChatError("the template refuses this")]
    chat, _, told = talk("one")
    assert "error: the template refuses this" in told
    assert chat.messages == []


# -- the program -------------------------------------------------------------------------------------------------------

SHORT = ("--threads", "1", "--temperature", "0", "--max-tokens", "4")


@pytest.fixture(scope="module")
def chatting(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("chat") / "tiny.gguf"
    return write_tiny_llama(path, metadata={"tokenizer.chat_template": TEMPLATE}).path


def test_a_prompt_is_a_message_unless_raw(chatting: str) -> None:
    chat = program("run", chatting, "hello", *SHORT)
    asked = program("run", chatting, "<user>hello<assistant>", *SHORT, "--raw")
    assert chat.code == asked.code == 0
    assert chat.out == asked.out != program("run", chatting, "hello", *SHORT, "--raw").out
    assert program("run", chatting, *SHORT, given=b"hello\n").out == chat.out, "piped"
    both = program("run", chatting, "hello", *SHORT, given=b"a file\n")
    assert both.out == program("run", chatting, *SHORT, given=b"a file\n\nhello").out


def test_a_template_from_a_file(chatting: str, tmp_path: Path) -> None:
    path = tmp_path / "t.jinja"
    path.write_text("<{{ messages[0].content }}>", encoding="utf-8")
    found = program("run", chatting, "hello", *SHORT, "--template", str(path))
    assert found.out == program("run", chatting, "<hello>", *SHORT, "--raw").out


@pytest.mark.parametrize("option", [("--system", "x"), ("--think", "true"), ("--hide-thinking",)], ids=str)
def test_chat_options_where_nothing_chats(chatting: str, tiny: str, option: tuple[str, ...]) -> None:
    raw = program("run", chatting, "hello", "--raw", *option)
    assert (raw.code, raw.out) == (2, b"")
    assert f"{option[0]} has no effect: --raw and --echo continue a text" in raw.err
    assert "the model's file has no chat template" in program("run", tiny, "hello", *option).err


@pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX terminals")
def test_a_conversation_in_a_terminal(chatting: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with Terminal("run", chatting, *SHORT) as terminal:
        terminal.wait_for(b">>> ")
        terminal.type(b"hello\n")
        terminal.wait_for(b">>> ")
        terminal.type(b"/show messages\n")
        assert b"user: hello" in terminal.wait_for(b">>> ")
        assert terminal.end(b"/bye\n") == 0
    history = tmp_path / "ollama_engine" / "history"
    assert "hello" in history.read_text(encoding="utf-8")
    assert history.stat().st_mode & 0o77 == 0, "for its owner only"
