"""Images at the command line: --image, dropped paths, /image, and conversations that are saved with them."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ollama_engine.chat.messages import read_messages
from ollama_engine.cli.chat.chat import ChatConversation
from ollama_engine.cli.chat.chat_printer import ChatPrinter
from ollama_engine.cli.chat.images import dropped_images, image_of_flag, image_part, named_path, read_named
from ollama_engine.cli.chat.settings import Settings, set_here
from ollama_engine.cli.errors import Flags
from ollama_engine.cli.main import main
from ollama_engine.errors import ImageError
from ollama_engine.runner.request.options import RequestOptions
from ollama_engine.sample import SamplingParams
from ollama_engine.segments import Media
from tests.cli.program import Terminal, program
from tests.cli.test_chat import YES, FakeEngine, user
from tests.models.vision import harness
from tests.models.vision.harness import cases
from tests.multimodal.pictures import FILES
from tests.support.media_model import REFUSED, media_llama, picture
from tests.support.media_model import TEMPLATE as SEEING_TEMPLATE
from tests.support.tiny import write_tiny_llama

TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of images, and where the test is."""
    for name in ("cat.png", "my cat.png", "it's (1).png", "ä.png", "cat"):
        (tmp_path / name).write_bytes(FILES["png"])
    (tmp_path / "dog.jpg").write_bytes(FILES["jpeg"])
    (tmp_path / "broken.png").write_bytes(FILES["png"][:100])
    (tmp_path / "notes.txt").write_text("hello")
    (tmp_path / "not.png").write_text("hello")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


# -- paths in a line ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("line", "names", "left"), [
    ("cat.png", ["cat.png"], ""),
    ("What is in cat.png?", ["cat.png"], "What is in"),
    ("Compare cat.png and {0}/dog.jpg, please", ["cat.png", "dog.jpg"], "Compare and please"),
    ("{0}/cat.png", ["cat.png"], ""),
    ("{0}/cat.png What is this?", ["cat.png"], "What is this?"),
    ("'{0}/my cat.png' What's this?", ["my cat.png"], "What's this?"),
    ('Look: "{0}/my cat.png"', ["my cat.png"], "Look:"),
    ("{0}/my\\ cat.png what?", ["my cat.png"], "what?"),
    ("{0}/it\\'s\\ \\(1\\).png", ["it's (1).png"], ""),
    ("{0}/my cat.png", ["my cat.png"], ""),
    ("  my cat.png ", ["my cat.png"], ""),
    ("file://{0}/my%20cat.png and file://{0}/%C3%A4.png", ["my cat.png", "ä.png"], "and"),
    ("~/cat.png", ["cat.png"], ""),
    ("./cat what?", ["cat"], "what?"),
    ("It's cat.png, isn't it", ["cat.png"], "It's isn't it"),
    ("CAT.PNG", [], "CAT.PNG"),
    ("cat", [], "cat"),
    ("the cat and notes.txt", [], "the cat and notes.txt"),
    ("not.png  and   no.png", [], "not.png  and   no.png"),
    ("https://example.com/cat.png", [], "https://example.com/cat.png"),
    ("file://[bad/cat.png", [], "file://[bad/cat.png"),
    ("'unclosed cat.pn", [], "'unclosed cat.pn"),
    ("/etc", [], "/etc"),
    ("a\0b/c.png", [], "a\0b/c.png"),
    ("\\", [], "\\"),
    ("", [], ""),
])  # fmt: skip
def test_paths_in_a_line(folder: Path, line: str, names: list[str], left: str) -> None:
    images, rest = dropped_images(line.replace("{0}", str(folder)))
    assert ([image.name for image in images], rest) == (names, left)
    assert all(image.data in (FILES["png"], FILES["jpeg"]) for image in images)


def test_a_damaged_image_is_told(folder: Path) -> None:
    with pytest.raises(ImageError, match=r"^broken.png: the image is damaged or cut off"):
        dropped_images("see broken.png")
    with pytest.raises(ImageError, match=r"^no.png cannot be read: No such file"):
        read_named("no.png")


@pytest.mark.parametrize(
    "typed", ["cat.png", "'my cat.png'", '"my cat.png"', "my\\ cat.png", "my cat.png", "~/cat.png"]
)
def test_a_named_path(folder: Path, typed: str) -> None:
    assert read_named(named_path(typed)).data == FILES["png"]
    assert named_path("no.png") == "no.png"


@pytest.mark.parametrize("name", ["png", "jpeg", "webp", "gif", "bmp", "tiff", "ppm"])
def test_a_part_is_read_as_the_image(name: str, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(FILES[name])
    part = image_part(image_of_flag(str(tmp_path / "x")))
    assert json.loads(json.dumps(part)) == part
    url = part["image_url"]["url"]
    assert url.startswith("data:image/x-portable-anymap;" if name == "ppm" else f"data:image/{name};base64,")
    assert read_messages([{"role": "user", "content": [part]}])[0].media == (Media(FILES[name]),)


# -- conversations -----------------------------------------------------------------------------------------------------


@pytest.fixture
def talk(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Types lines; returns the engine, the conversation and what was told."""

    def run(*lines: str, **fields: Any) -> tuple[FakeEngine, ChatConversation, str]:
        waiting: Iterator[str] = iter(lines)

        def read(prompt: str = "") -> str:
            line = next(waiting, None)
            if line is None:
                raise EOFError
            return line

        monkeypatch.setattr("builtins.input", read)
        engine = fields.pop("engine", None) or FakeEngine()
        settings = Settings(SamplingParams(), RequestOptions(), set_here(Flags()))
        printer = ChatPrinter(reasoning=False, dim=False)
        chat = ChatConversation(engine, printer, settings, {}, **{"reads_images": True, **fields})
        chat.run()
        return engine, chat, capsys.readouterr().err.replace(">>> ", "")

    return run


def seen(text: str, *names: str) -> dict[str, Any]:
    parts = [image_part(read_named(name)) for name in names]
    return {"role": "user", "content": [*parts, {"type": "text", "text": text}]}


def test_a_dropped_path_goes_with_its_text(folder: Path, talk: Any) -> None:
    engine, chat, told = talk("What is in cat.png ?", f"{folder}/dog.jpg And this?", "Sure?")
    assert engine.asked[0] == [seen("What is in ?", "cat.png")]
    assert engine.asked[2] == [seen("What is in ?", "cat.png"), YES, seen("And this?", "dog.jpg"), YES, user("Sure?")]
    assert told.count("added image") == 2
    assert "added image cat.png\n" in told
    assert "added image dog.jpg\n" in told
    assert chat.images == []


def test_a_path_alone_waits_for_the_next_message(folder: Path, talk: Any) -> None:
    engine, _, _ = talk("cat.png", "/image 'my cat.png'", "What?")
    assert engine.asked == [[seen("What?", "cat.png", "my cat.png")]]


def test_what_a_user_quotes_is_text(folder: Path, talk: Any) -> None:
    engine, _, told = talk('"""cat.png"""', "/help me", "/nothing", "/image no.png", "/image", "/image broken.png")
    assert engine.asked == [[user("cat.png")]]
    assert "there is no command /nothing" in told
    assert "error: no.png cannot be read: No such file or directory" in told
    assert "error: /image takes the path of an image file" in told
    assert "error: broken.png: the image is damaged" in told


def test_a_model_of_text_reads_paths_as_text(folder: Path, talk: Any) -> None:
    engine, _, told = talk("What is cat.png", "/image cat.png", f"{folder}/cat.png", reads_images=False)
    assert engine.asked == [[user("What is cat.png")]]
    assert "error: the model reads text only" in told
    assert "there is no command" in told
    assert "drop one here" not in told


def test_the_hint_and_help_name_images(talk: Any) -> None:
    _, _, told = talk("/help")
    assert "It reads images: drop one here, or /image FILE." in told
    assert "/image FILE" in told


def test_images_wait_on_where_a_message_fails_and_not_where_they_do(folder: Path, talk: Any) -> None:
    engine = FakeEngine(most=0)
    engine, chat, _ = talk("/image cat.png", "too long", engine=engine)
    assert [image.name for image in chat.images] == ["cat.png"]

    class Refusing(FakeEngine):
        def chat_stream(self, messages: Any, params: Any, **options: Any) -> Any:
            if isinstance(messages[-1]["content"], list):
                raise ImageError("too small")
            return super().chat_stream(messages, params, **options)

    engine, chat, told = talk("What is cat.png", "Then not.", engine=Refusing())
    assert "error: too small" in told
    assert engine.asked == [[user("Then not.")]]
    assert chat.images == []


def test_clear_forgets_images_that_wait(folder: Path, talk: Any) -> None:
    engine, _, _ = talk("cat.png", "/clear", "What?")
    assert engine.asked == [[user("What?")]]


def test_conversations_with_images_are_saved_and_loaded(folder: Path, talk: Any) -> None:
    _, chat, _ = talk("What is cat.png ?", "/save talk.json")
    saved = json.loads((folder / "talk.json").read_text())
    url = saved["messages"][0]["content"][0]["image_url"]["url"]
    assert base64.b64decode(url.partition(",")[2]) == FILES["png"]
    (folder / "cat.png").unlink()
    engine, again, told = talk("/load talk.json", "/show messages", "Sure?")
    assert again.messages[:2] == chat.messages
    assert "user: [image]What is ?" in told
    assert engine.asked == [[*chat.messages, user("Sure?")]]
    assert read_messages(again.messages)[0].media == (Media(FILES["png"]),)
    _, none, told = talk("/load talk.json", reads_images=False)
    assert "error: talk.json has images in it, and the model reads text only" in told
    assert none.messages == []


@pytest.mark.parametrize("part", [
    {"type": "image_url", "image_url": {"url": "/etc/passwd"}}, {"type": "image", "path": "cat.png"}, "text", 5,
    {"type": "text"}, {"type": "image_url"}, {"type": "image_url", "image_url": "https://x/y.png"},
], ids=str)  # fmt: skip
def test_a_conversation_file_names_no_other_files(folder: Path, talk: Any, part: Any) -> None:
    Path("evil.json").write_text(json.dumps({"messages": [{"role": "user", "content": [part]}]}))
    _, chat, told = talk("/load evil.json")
    assert "messages[0] has a role (user, assistant) and as content a text, or a list of texts and of images" in told
    assert chat.messages == []


# -- the program -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_tiny_llama(tmp_path_factory.mktemp("tiny") / "tiny.gguf", n_layer=1, n_embd=128, seed=4).path


def run(*arguments: str) -> int:
    """In this process, where a llama may be a model that reads images."""
    with media_llama():
        code: int = main(["run", *arguments, "--temperature=0", "-n", "4", "--num-ctx=128", "-t", "1"])
        return code


def test_run_shows_the_model_images(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, pixels in (("a.png", bytes(range(40, 52))), ("b.png", bytes(range(60, 72)))):
        (tmp_path / name).write_bytes(picture(pixels))
    (tmp_path / "template").write_text(TEMPLATE)
    a, b = str(tmp_path / "a.png"), str(tmp_path / "b.png")
    told = set()
    for images in ([], [a], [b], [a, b]):
        for more in (["--raw"], [f"--template={tmp_path / 'template'}"]):
            assert run(model, "Hi", *(f"--image={path}" for path in images), "--verbose", *more) == 0
            err = capsys.readouterr().err
            told.add((more[0][:5], len(images), err[err.index("prompt ") :].split()[1]))
    counts = {(kind, n): int(tokens) for kind, n, tokens in told}
    for kind in ("--raw", "--tem"):
        assert [counts[kind, n] - counts[kind, 0] for n in (1, 2)] == [14, 28]
    assert run(model, "--raw", "x [img] y", f"--image={a}") == 0
    assert run(model, "--raw", "x [img] [img] y", f"--image={a}") == 1
    assert "the prompt has 2 markers for 1 image" in capsys.readouterr().err


def test_errors_name_the_flag(model: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "refused.png").write_bytes(picture(REFUSED))
    for path, told in (("cat.pgn", "--image: cat.pgn: No such file or directory; did you mean cat.png"),
                       ("notes.txt", "--image: notes.txt is no image that can be read, but begins with"),
                       ("broken.png", "--image: broken.png: the image is damaged or cut off"),
                       (".", "--image: .")):  # fmt: skip
        assert run(model, "Hi", "--image", path) == 2
        assert told in capsys.readouterr().err
    assert run(model, "Hi", "--raw", "--image", "refused.png") == 1
    assert "the model cannot take this image" in capsys.readouterr().err


def test_a_model_of_text_has_no_images(model: str, folder: Path) -> None:
    done = program("run", model, "Hi", "--image", "cat.png", "-n", "1")
    assert done.code == 2
    assert "--image has no effect: the model reads text only, unless --mmproj names its other part" in done.err
    assert program("run", model, "What is [img] cat.png", "-n", "1", "--raw").code == 0


@pytest.mark.slow
def test_a_file_that_is_dropped_into_a_terminal(tmp_path: Path) -> None:
    """With a space in its path, as terminals write it; and a real model that reads images."""
    case = next(case for case in cases() if case.name == "gemma3")
    (tmp_path / "my cat.png").write_bytes(FILES["png"])
    (tmp_path / "template").write_text(SEEING_TEMPLATE.replace("<image>", case.placeholder))
    model = str(harness.converted(case, tmp_path))
    options = (f"--template={tmp_path / 'template'}", "-n", "3", "--num-ctx=256", "-t", "1")
    with Terminal("run", model, *options) as terminal:
        terminal.wait_for(b">>> ")
        terminal.type(str(tmp_path / "my cat.png").replace(" ", "\\ ").encode() + b"\n")
        terminal.wait_for(b"added image my cat.png")
        terminal.wait_for(b">>> ")
        terminal.type(b"What is it?\n")
        terminal.wait_for(b">>> ")
        terminal.type(b"/show prompt\n")
        assert b"<user>[image]What is it?" in terminal.wait_for(b">>> ")


def test_the_packaged_picture(cli) -> None:
    result = cli("run", "demo-vision", "What is in the picture?", "--image", "demo", "--temperature", "0")
    assert result.out == "a red circle at the top left and a yellow square in the middle\n"
