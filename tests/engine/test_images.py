"""Images beside prompts, in every call that takes a prompt, and in chats."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest

from ollama_engine import Engine, Media, Text, Tokens
from ollama_engine.errors import ChatError, ConfigError, ImageError, UnsupportedInputError
from ollama_engine.runner.media import image_reader
from tests.multimodal.pictures import FILES
from tests.support.engine_thread import idle
from tests.support.media_model import BEGIN, END, REFUSED, TEMPLATE, MediaLlama, media_llama, picture
from tests.support.near import assert_same_rows
from tests.support.tiny import write_tiny_llama
from tests.support.tiny_answers import BOS, greedy

CAT, DOG = bytes(range(40, 52)), bytes(range(60, 72))


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_tiny_llama(tmp_path_factory.mktemp("tiny") / "tiny.gguf", n_layer=2, n_embd=128, seed=4).path


@pytest.fixture(scope="module")
def text_engine(path: str) -> Iterator[Engine]:
    with Engine(path, num_ctx=64, threads=1) as engine:
        yield engine


@pytest.fixture(scope="module")
def engine(path: str, text_engine: Engine) -> Iterator[Engine]:
    assert text_engine  # which was loaded before, as a model of text
    with ExitStack() as stack:
        stack.enter_context(media_llama(bidirectional=True))
        yield stack.enter_context(Engine(path, num_ctx=160, parallel=3, batch_size=16, threads=1, verify=True))


def grey(pixels: bytes) -> np.ndarray:
    return np.frombuffer(pixels, np.uint8)[None]


def url(pixels: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(picture(pixels)).decode()


MARKED = "Is [img] like [img-0]?"
SEGMENTS = [Text("Is "), Media(picture(DOG)), Text(" like "), Media(picture(CAT)), Text("?")]
IMAGES = [picture(CAT), picture(DOG)]


def test_every_call_that_takes_a_prompt_takes_images(engine: Engine) -> None:
    expected = engine.generate(SEGMENTS, greedy(6))
    assert engine.generate(MARKED, greedy(6), images=IMAGES).tokens == expected.tokens
    assert "".join(chunk.text for chunk in engine.stream(MARKED, greedy(6), images=IMAGES)) == expected.text
    request = engine.submit(MARKED, greedy(6), images=IMAGES)
    assert request.result(60).tokens == expected.tokens
    assert engine.fork(request, greedy(6)).result(60).usage.prompt_tokens > expected.usage.prompt_tokens
    assert [one.tokens for one in engine.generate(MARKED, greedy(6), images=IMAGES, n=2)] == [expected.tokens] * 2
    assert_same_rows(engine.logits(MARKED, images=IMAGES), engine.logits(SEGMENTS))
    assert engine.score(MARKED, [" yes", " no"], images=IMAGES) == engine.score(SEGMENTS, [" yes", " no"])


def test_white_space_before_a_continuation_is_its_own(engine: Engine) -> None:
    """Also where images make segments of the prompt."""
    expected = engine.score("Is [img] it?", [" yes", " no"], images=IMAGES[:1])
    found = engine.score("Is [img] it? ", ["yes", "no"], images=IMAGES[:1])
    assert [score.tokens for score in found] == [score.tokens for score in expected]


def test_a_stream_that_is_closed_while_its_images_are_read(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    reading, go_on = threading.Event(), threading.Event()
    read = image_reader.read_image

    def slowly(*args: Any) -> Any:
        reading.set()
        assert go_on.wait(60)
        return read(*args)

    monkeypatch.setattr(image_reader, "read_image", slowly)

    async def ask() -> None:
        stream = engine.astream("x", greedy(6), images=[picture(bytes(range(100, 105)))])
        assert await asyncio.to_thread(reading.wait, 60)
        await stream.aclose()
        go_on.set()
        assert [chunk async for chunk in stream] == []

    asyncio.run(ask())
    assert engine.generate("x", greedy(1)).tokens


def test_the_same_for_asyncio(engine: Engine) -> None:
    expected = engine.generate(SEGMENTS, greedy(6))

    async def ask() -> None:
        assert (await engine.agenerate(MARKED, greedy(6), images=IMAGES)).tokens == expected.tokens
        both = await engine.agenerate([MARKED, "x"], greedy(6), images=[IMAGES, []])
        assert both[0].tokens == expected.tokens
        assert [chunk.text async for chunk in engine.astream(MARKED, greedy(6), images=IMAGES)]
        assert await engine.ascore(MARKED, " yes", images=IMAGES) == engine.score(SEGMENTS, " yes")
        stream = engine.astream("x", greedy(6), images=[b"nothing"])
        with pytest.raises(ImageError, match="it is no image that can be read"):
            await asyncio.wait_for(stream.completion(), 60)
        with pytest.raises(ConfigError, match="1 marker for 2 images"):
            engine.astream("[img]", greedy(6), images=IMAGES)
        with engine.session() as session:
            await session.aappend(MARKED, images=IMAGES)
            assert (await session.agenerate(greedy(6))).tokens == expected.tokens

    asyncio.run(ask())


def test_reading_images_does_not_hold_up_the_event_loop(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many pixels take long to decode: that is done in a thread."""
    threads = []
    read = image_reader.read_image

    def noting(*args: Any, **options: Any) -> Any:
        threads.append(threading.current_thread())
        return read(*args, **options)

    monkeypatch.setattr(image_reader, "read_image", noting)

    async def ask() -> None:
        await engine.agenerate("a", greedy(1), images=[picture(bytes(range(20, 25)))])
        await engine.agenerate(["a"], greedy(1), images=[[picture(bytes(range(21, 25)))]])
        await engine.achat([{"role": "user", "content": "a", "images": [picture(bytes(range(22, 25)))]}], greedy(1),
                           template=TEMPLATE)  # fmt: skip

    asyncio.run(ask())
    assert len(threads) >= 3
    assert threading.main_thread() not in threads


def test_all_sources_are_the_same_image(engine: Engine, tmp_path: Path) -> None:
    (tmp_path / "a cat.png").write_bytes(picture(CAT))
    expected = engine.generate([Media(picture(CAT)), Tokens([60, 61])], greedy(6)).tokens
    sources: list[Any] = [
        str(tmp_path / "a cat.png"), tmp_path / "a cat.png", bytearray(picture(CAT)), io.BytesIO(picture(CAT)),
        PIL.Image.open(tmp_path / "a cat.png"), PIL.Image.fromarray(grey(CAT)), grey(CAT), grey(CAT) / 255,
    ]  # fmt: skip
    for source in sources:
        assert engine.generate([Media(source), Tokens([60, 61])], greedy(6)).tokens == expected
    sources[4].close()


def test_images_stand_before_a_text_without_markers(engine: Engine) -> None:
    ids = engine.submit("hi", greedy(1), images=[picture(CAT)]).prompt
    assert ids[:2] == (BOS, BEGIN)
    assert ids[2 + len(CAT)] == END
    assert ids[3 + len(CAT) :] == tuple(engine.tokenize("hi", add_special=False))


def test_a_text_without_images_has_no_markers(engine: Engine, text_engine: Engine) -> None:
    for text in ("[img] [img-0]", "<image>"):
        for each in (engine, text_engine):
            assert each.submit(text, greedy(1)).prompt == tuple(each.tokenize(text))
            assert each.submit(text, greedy(1), images=[]).prompt == tuple(each.tokenize(text))


def test_several_prompts(engine: Engine) -> None:
    found = engine.generate(["a [img]", "b", "[img-1][img-0]"], greedy(6), images=[[picture(CAT)], [], IMAGES])
    expected = [[Text("a "), Media(picture(CAT))], "b", [Media(picture(DOG)), Media(picture(CAT))]]
    assert [one.tokens for one in found] == [engine.generate(each, greedy(6)).tokens for each in expected]
    with pytest.raises(ImageError, match=r"^prompts\[1\]: image 2 of 2: it is no image"):
        engine.generate(["a", "b"], greedy(6), images=[[], [picture(CAT), b"nothing"]])


def test_errors_say_which_image(engine: Engine, tmp_path: Path) -> None:
    with pytest.raises(ImageError, match=r"^image 2 of 2: no/cat.png cannot be read: No such file or directory$"):
        engine.generate("a", images=[picture(CAT), "no/cat.png"])
    damaged = tmp_path / "damaged.png"
    damaged.write_bytes(picture(CAT)[:40])
    with pytest.raises(ImageError, match=rf"^image 2 of 2: {re.escape(str(damaged))}: the image is damaged"):
        engine.generate("a", images=[picture(CAT), damaged])
    with pytest.raises(ImageError, match=r"^the model cannot take this image"):
        engine.generate("a", images=[picture(REFUSED)])
    with pytest.raises(ImageError, match="got list; give one image after the other"):
        engine.generate("a", images=[[picture(CAT)]])
    assert engine.generate("a", greedy(1), images=[picture(CAT)])


def test_a_model_of_text_refuses_images_before_it_looks_at_them(text_engine: Engine) -> None:
    idle(text_engine)  # an answer may end while a further step is computed
    n_steps = text_engine.metrics.steps
    told = r"the model \(architecture llama\) reads text only"
    calls = [
        lambda: text_engine.generate("x", images=["no/cat.png"]),
        lambda: text_engine.stream("x", images=["no/cat.png"]),
        lambda: text_engine.submit("x", images=["no/cat.png"]),
        lambda: text_engine.logits("x", images=["no/cat.png"]),
        lambda: text_engine.score("x", "y", images=["no/cat.png"]),
        lambda: text_engine.generate(["x"], images=[["no/cat.png"]]),
        lambda: text_engine.session().append("x", images=["no/cat.png"]),
        lambda: text_engine.embed([Text("x"), Media("no/cat.png")]),
        lambda: text_engine.chat([{"role": "user", "content": "x", "images": ["AAAA"]}], template="{{ messages }}"),
    ]
    for call in calls:
        with pytest.raises(UnsupportedInputError, match=told):
            call()

    async def stream() -> None:
        text_engine.astream("x", images=["no/cat.png"])

    with pytest.raises(UnsupportedInputError, match=told):
        asyncio.run(stream())
    assert text_engine.metrics.steps == n_steps


# -- chats -------------------------------------------------------------------------------------------------------------


def test_chats_take_images_in_every_form(engine: Engine, tmp_path: Path) -> None:
    (tmp_path / "cat.png").write_bytes(picture(CAT))
    prompt = engine.apply_template([{"role": "user", "content": [Media(picture(CAT)), "What?"]}], template=TEMPLATE)
    assert prompt == [Text("<user>", True), Media(picture(CAT)), Text("What?")]
    expected = engine.generate(prompt, greedy(6)).tokens
    path = str(tmp_path / "cat.png")
    text = {"type": "text", "text": "What?"}
    contents: list[Any] = [
        [{"type": "image_url", "image_url": {"url": url(CAT)}}, text],
        [{"type": "image", "path": path}, text],
        [{"type": "image", "image": PIL.Image.fromarray(grey(CAT))}, text],
        [grey(CAT), "What?"],
    ]
    messages: list[dict[str, Any]] = [{"role": "user", "content": content} for content in contents]
    images = (path, picture(CAT), url(CAT), url(CAT).partition(",")[2], tmp_path / "cat.png")
    messages += [{"role": "user", "content": "What?", "images": [image]} for image in images]
    for message in messages:
        assert engine.chat([message], greedy(6), template=TEMPLATE).tokens == expected
    found = asyncio.run(engine.achat(messages[:1], greedy(6), template=TEMPLATE))
    assert found.tokens == expected


def test_an_image_of_an_earlier_turn_is_not_encoded_again(engine: Engine) -> None:
    first = {"role": "user", "content": "What?", "images": [picture(bytes(range(80, 92)))]}
    answer = engine.chat([first], greedy(6), template=TEMPLATE)
    n = len(MediaLlama.encoded)
    again = engine.chat([first, answer.message, {"role": "user", "content": "Sure?"}], greedy(6), template=TEMPLATE)
    assert len(MediaLlama.encoded) == n
    assert again.usage.cached_tokens >= answer.usage.prompt_tokens


def test_what_a_user_types_in_a_chat_is_no_image(engine: Engine) -> None:
    typed = "<image> [img] [img-0] <start_of_image>"
    found = engine.apply_template([{"role": "user", "content": typed}], template=TEMPLATE)
    assert found == [Text("<user>", True), Text(typed)]
    found = engine.apply_template([{"role": "user", "content": typed, "images": [picture(CAT)]}], template=TEMPLATE)
    assert found == [Text("<user>", True), Media(picture(CAT)), Text(typed)]


def test_addresses_are_not_fetched(engine: Engine) -> None:
    for image in ("https://example.com/cat.png", "file:///cat.png", "ftp://x/y"):
        with pytest.raises(ChatError, match=r"messages\[0\].images\[0\]: .* are not fetched"):
            engine.chat([{"role": "user", "content": "x", "images": [image]}], template=TEMPLATE)


def test_a_conversation_can_be_saved_as_json_and_go_on(engine: Engine) -> None:
    first = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": url(DOG)}}, "Hm"]}
    answer = engine.chat([first], greedy(6), template=TEMPLATE)
    history = json.loads(json.dumps([first, {"role": "assistant", "content": answer.content}]))
    assert engine.apply_template(history, template=TEMPLATE)[1] == Media(picture(DOG))


# -- sessions ----------------------------------------------------------------------------------------------------------


def test_a_session_file_needs_no_picture(engine: Engine, path: str, tmp_path: Path) -> None:
    """Restored in a new process, after the picture's file is gone, even where it is computed again."""
    cat = tmp_path / "cat.png"
    cat.write_bytes(picture(CAT))
    with engine.session() as session:
        session.append("See [img]!", images=[cat])
        session.save(tmp_path / "saved")
        expected = session.generate(greedy(6)).tokens
    cat.unlink()
    script = f"""
from ollama_engine import Engine, SamplingParams
from tests.support.media_model import MediaLlama, media_llama
with media_llama(bidirectional=True), Engine({path!r}, num_ctx=160, threads=1, kv_cache_type=KIND) as engine:
    MediaLlama.encoded.clear()  # of loading, which tries the largest image
    with engine.load_session({str(tmp_path / "saved")!r}) as session:
        params = SamplingParams(temperature=0, max_tokens=6, logit_bias={{318: float("-inf"), 319: float("-inf")}})
        print(session.generate(params).tokens, MediaLlama.encoded)
"""
    for kind in ("f16", "f32"):
        command = [sys.executable, "-c", script.replace("KIND", repr(kind))]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.strip() == f"{expected} []"


def test_a_session_that_refuses_an_image_is_unchanged(engine: Engine) -> None:
    with engine.session() as session:
        session.append("a", images=[picture(CAT)])
        before = session.tokens
        for images, error in ((["no.png"], ImageError), ("no.png", ConfigError), ([FILES["png"][:50]], ImageError)):
            with pytest.raises(error):
                session.append("b", images=images)  # type: ignore[arg-type]
        assert session.tokens == before
        assert session.generate(greedy(2)).tokens


def test_images_under_other_names_and_in_other_calls(text_engine: Engine) -> None:
    with pytest.raises(TypeError, match=r"no 'image'; did you mean a call with a prompt, as in generate\(prompt"):
        text_engine.generate("x", image=["cat.png"])  # type: ignore[call-overload]
    with text_engine.session() as session:
        session.append("x")
        with pytest.raises(TypeError, match=r"'images'; it belongs in a call with a prompt, as in generate"):
            session.generate(images=["cat.png"])  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"'images'; it belongs in a message: \{\"role\": \"user\", .*\"images\": \["):
        text_engine.chat([{"role": "user", "content": "x"}], images=["cat.png"])  # type: ignore[call-arg]
