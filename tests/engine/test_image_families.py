"""The public face on tiny models of every family that reads images: what transformers answers to the same pictures."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest

from ollama_engine import Engine, SamplingParams
from tests.cli.program import program
from tests.models.vision import harness
from tests.models.vision.harness import Case, cases, greedy
from tests.models.vision.pictures import Picture
from tests.support.guesses import Guesses, drafting
from tests.support.near import assert_same_answer, assert_same_rows
from tests.support.suite import slow_except

each_case = pytest.mark.parametrize("case", cases(), ids=str, indirect=True)

TEMPLATE = (
    "{% for m in messages %}{% for part in m.content %}"
    "{% if part.type == 'image' %}PLACEHOLDER{% else %}{{ part.text }}{% endif %}{% endfor %}{% endfor %}"
)
"""A chat that is its contents alone, so that the prompts of the goldens can be put into messages."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(tmp_path_factory.mktemp("families"))


@pytest.fixture(scope="module")
def case(request: pytest.FixtureRequest) -> Case:
    found: Case = request.param
    return found


@pytest.fixture(scope="module")
def engine(case: Case, folder: Path) -> Iterator[Engine]:
    with harness.engine(harness.converted(case, folder)) as engine:
        yield engine


golden = harness.load


def pictures(prompt: harness.Prompt) -> list[Picture]:
    return [part for part in prompt if isinstance(part, Picture)]


def marked(prompt: harness.Prompt) -> str:
    return "".join("[img]" if isinstance(part, Picture) else part for part in prompt)


def png(picture: Picture) -> bytes:
    file = io.BytesIO()
    picture.draw().save(file, "PNG")
    return file.getvalue()


def ids(case: Case, engine: Engine, request: Any) -> list[int]:
    """The ids of a request's prompt, as transformers' processor writes them."""
    return case.ids(request.inputs)


@each_case
def test_images_beside_a_text(case: Case, engine: Engine) -> None:
    """In every form, with markers in order and by number: the ids and tokens of transformers."""
    for name, prompt in case.prompts.items():
        shown, expected = pictures(prompt), golden(case).answers[name]
        forms: list[list[Any]] = [
            [png(picture) for picture in shown],
            [picture.draw() for picture in shown],
            [np.asarray(picture.draw()) for picture in shown],
        ]
        for images in forms:
            request = engine.submit(marked(prompt), greedy(case), images=images)
            assert ids(case, engine, request) == expected.ids.tolist()
            assert list(request.result(60).tokens) == expected.tokens
        text = marked(prompt)
        for number in reversed(range(len(shown))):
            text = text[: text.rindex("[img]")] + f"[img-{number}]" + text[text.rindex("[img]") + len("[img]") :]
        numbered = engine.submit(text, greedy(case), images=forms[0])
        assert ids(case, engine, numbered) == expected.ids.tolist()


@each_case
def test_wrong_guesses_behind_images_change_nothing(case: Case, engine: Engine) -> None:
    """Their cells leave the cache, those of images stay, and rotations go on from where the images end."""
    params = replace(greedy(case), max_tokens=24, logprobs=1)
    for prompt in case.prompts.values():
        images = [png(picture) for picture in pictures(prompt)]
        expected = engine.generate(marked(prompt), params, images=images, draft="off", cache=False)
        with drafting(Guesses([*[0] * expected.usage.prompt_tokens, *expected.tokens], 3)):
            found = engine.generate(marked(prompt), params, images=images, draft="off", cache=False)
        assert_same_answer(found, expected)
        assert 5 < found.usage.accepted_tokens < found.usage.drafted_tokens


@each_case
def test_images_in_a_chat(case: Case, engine: Engine) -> None:
    """What the template writes for an image gives way to it: the placeholder is that of transformers' processor."""
    placeholder = engine._loaded.images.multimodal.placeholder
    assert placeholder == case.placeholder
    template = TEMPLATE.replace("PLACEHOLDER", placeholder)
    for name, prompt in case.prompts.items():
        parts: list[Any] = [part.draw() if isinstance(part, Picture) else part for part in prompt]
        messages = [{"role": "user", "content": parts}]
        segments = engine.apply_template(messages, template=template)
        assert len(segments) == len(prompt)
        answer = engine.chat(messages, greedy(case), template=template)
        assert list(answer.tokens) == golden(case).answers[name].tokens


@each_case
def test_what_a_user_types_is_no_image(case: Case, engine: Engine) -> None:
    """Also not where the same text is a control token of the vocabulary, in a chat."""
    template = TEMPLATE.replace("PLACEHOLDER", case.placeholder)
    content = [f"x{case.placeholder}[img]", "y"]
    with engine.chat_stream([{"role": "user", "content": content}], SamplingParams(max_tokens=1),
                            template=template) as stream:  # fmt: skip
        inputs = stream._stream._request.inputs
    assert not inputs.media
    assert engine.detokenize(inputs.tokens.tolist()).endswith(f"x{case.placeholder}[img]y")


@each_case
def test_transparent_and_turned_pictures(case: Case, engine: Engine, tmp_path: Path) -> None:
    """A picture that lies on its side in the file is the upright one, and one that is transparent is on white."""
    upright = Picture(60, 45, 9).draw().convert("RGB")
    exif = PIL.Image.Exif()
    exif[0x0112] = 6
    upright.transpose(PIL.Image.Transpose.ROTATE_90).save(tmp_path / "turned.png", exif=exif)
    clear = upright.convert("RGBA")
    clear.paste((5, 6, 7, 0), (10, 10, 30, 30))
    on_white = upright.copy()
    on_white.paste((255, 255, 255), (10, 10, 30, 30))
    for given, same in ((tmp_path / "turned.png", upright), (clear, on_white)):
        found, expected = (engine.logits("a [img] b", images=[image]) for image in (given, same))
        assert_same_rows(found, expected)


QUICK = [case for case in cases() if case.name == "gemma3"]
SCRIPT = """
import json, sys
from tests.models.vision import harness
path, saved, case_name = sys.argv[1:]
case = next(case for case in harness.cases() if case.name == case_name)
with harness.engine(path) as engine, engine.load_session(saved) as session:
    print(json.dumps(list(session.generate(harness.greedy(case)).tokens)))
"""


@pytest.mark.parametrize("case", slow_except(cases(), *QUICK), ids=str, indirect=True)
def test_a_session_with_images_in_another_process(case: Case, engine: Engine, folder: Path, tmp_path: Path) -> None:
    """Its pictures' files are gone. Appended piece by piece it says what the whole prompt says."""
    name, prompt = "one", case.prompts["one"]
    file = tmp_path / "picture.png"
    file.write_bytes(png(pictures(prompt)[0]))
    with engine.session() as session:
        session.append(marked(prompt), images=[file])
        session.save(tmp_path / "saved")
    file.unlink()
    command = [sys.executable, "-c", SCRIPT, str(harness.converted(case, folder)), str(tmp_path / "saved"), case.name]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == golden(case).answers[name].tokens


@pytest.mark.slow
@pytest.mark.parametrize("case", QUICK, ids=str, indirect=True)
def test_the_program(case: Case, folder: Path, tmp_path: Path) -> None:
    path = str(harness.converted(case, folder))
    prompt = case.prompts["two"]
    files = []
    for number, picture in enumerate(pictures(prompt)):
        files.append(str(tmp_path / f"{number}.png"))
        Path(files[-1]).write_bytes(png(picture))
    bias = [f"--logit-bias={token}=-inf" for token in case.banned]
    done = program("run", path, "--raw", marked(prompt), *(f"--image={file}" for file in files), "--temperature=0",
                   "-n", "32", "--kv-cache-type=f32", "--num-ctx=512", *bias)  # fmt: skip
    with harness.engine(path) as engine:
        expected = engine.detokenize(golden(case).answers["two"].tokens)
    assert done.code == 0, done.err
    assert done.out.decode().removesuffix("\n") == expected.removesuffix("\n")
    shown = program("show", path)
    assert b"of size 84, in patches of 14, by 3 blocks" in shown.out
