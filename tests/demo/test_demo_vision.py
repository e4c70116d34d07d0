"""The packaged model that sees: it is right about held-out pictures, and says what transformers says of them.

`seen.json` holds the answers of transformers, with the same weights; `demo_vision.reference` made it. Pictures are
drawn anew from their numbers.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from demo_vision.draw import draw
from demo_vision.held_out import HELD_OUT, digest, pictures, questions
from demo_vision.pillow import as_jpeg, one_by_pillow
from demo_vision.plain import alone
from demo_vision.questions import describe
from demo_vision.sample import sample
from demo_vision.scene import COLOURS, PLACES, SHAPES, Scene, Thing
from gguf import GGUFReader
from PIL.Image import Image, fromarray, new
from PIL.Image import open as open_image
from PIL.ImageDraw import Draw

from ollama_engine import Engine, SamplingParams, demo
from tests.support.suite import scaled

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs" / "images.md"
MAX_BYTES = 12_000_000
PICTURES = {kind: scaled(n, quick=20) for kind, n in HELD_OUT.items()}
LEAST_RIGHT = {"several": (0.95, 0.65), "alone": (0.95, 0.85)}
"""Shares of right descriptions, and of right answers to other questions."""
SMALL = scaled(0.0, quick=0.15)
"""Twenty pictures say less of a share than 500."""
PILLOW = [
    ("ellipse", (60, 60, 140, 140), "a red circle in the middle"),
    ("ellipse", (40, 40, 160, 160), "a blue circle in the middle"),
    ("rectangle", (65, 65, 135, 135), "a green square in the middle"),
    ("polygon", [(100, 60), (60, 140), (140, 140)], "a purple triangle in the middle"),
    ("ellipse", (10, 10, 60, 60), "an orange circle at the top left"),
    ("rectangle", (140, 140, 190, 190), "a blue square at the bottom right"),
]
FRESH = 8_000_000
"""Number of the first picture that neither training nor the choice of the weights has seen."""
GREEDY = SamplingParams(temperature=0, max_tokens=64)
ANSWERS: dict[str, Any] = json.loads(Path(__file__).with_name("seen.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module", params=HELD_OUT)
def kind(request: pytest.FixtureRequest) -> str:
    """Pictures of several things on any background, or of one alone on a plain one."""
    return str(request.param)


@pytest.fixture(scope="module")
def shown(kind: str) -> list[tuple[Scene, Image]]:
    return list(pictures(kind, PICTURES[kind]))


@pytest.fixture(scope="module")
def answers(shown: list[tuple[Scene, Image]]) -> list[list[str]]:
    """The engine's answers to both questions about each picture."""
    with Engine(demo.vision_path(), num_ctx=256, parallel=1, threads=1, kv_cache_type="f32") as engine:
        return [
            [ask(engine, image, question.question) for question in questions(scene, number)]
            for number, (scene, image) in enumerate(shown)
        ]


def ask(engine: Engine, image: Image, question: str) -> str:
    parts = [{"type": "image", "image": image}, {"type": "text", "text": question}]
    return str(engine.chat([{"role": "user", "content": parts}], GREEDY).message.content)


def test_is_a_small_plain_file() -> None:
    path = demo.vision_path()
    assert path.is_file()
    assert not path.is_symlink()
    assert path.stat().st_size <= MAX_BYTES


def test_metadata_and_tensors_are_those_of_a_gemma_3_that_sees() -> None:
    reader = GGUFReader(demo.vision_path())
    assert reader.fields["general.architecture"].contents() == "gemma3"
    assert reader.fields["general.license"].contents() == "mit"
    assert {t.name.split(".")[0] for t in reader.tensors} >= {"token_embd", "blk", "v", "mm"}
    assert {t.tensor_type.name for t in reader.tensors} == {"F16", "F32"}


def test_pictures_are_those_that_transformers_saw(kind: str) -> None:
    """Whatever numpy and Pillow draw them."""
    assert digest(image for _, image in pictures(kind, HELD_OUT[kind])) == ANSWERS[kind]["digest"]


def share_right(shown: list[tuple[Scene, Image]], answers: list[list[str]], which: int) -> float:
    expected = [questions(scene, number)[which].answer for number, (scene, _) in enumerate(shown)]
    return sum(found[which] == answer for found, answer in zip(answers, expected, strict=True)) / len(expected)


def test_names_shape_colour_and_place(kind: str, shown: list[tuple[Scene, Image]], answers: list[list[str]]) -> None:
    """Of every thing in a picture; a thing that is missed, made up or misplaced makes the whole picture wrong."""
    assert share_right(shown, answers, 0) >= LEAST_RIGHT[kind][0] - SMALL


def test_answers_other_questions(kind: str, shown: list[tuple[Scene, Image]], answers: list[list[str]]) -> None:
    """How many there are, what colour, where, and whether."""
    assert share_right(shown, answers, 1) >= LEAST_RIGHT[kind][1] - SMALL


def test_answers_are_those_of_transformers(kind: str, answers: list[list[str]]) -> None:
    """All where the goldens were made; another CPU's kernels round otherwise, and a few answers are near ties."""
    both = zip(answers, ANSWERS[kind]["answers"][: PICTURES[kind]], strict=True)
    differing = [(ours, theirs) for pair in both for ours, theirs in zip(*pair, strict=True) if ours != theirs]
    assert len(differing) <= PICTURES[kind] // 50, differing


def test_pictures_hold_every_shape_colour_and_place(kind: str) -> None:
    """Else the tests above would say less than they seem to."""
    things = [thing for scene, _ in pictures(kind, HELD_OUT[kind]) for thing in scene.things]
    assert {thing.shape for thing in things} == set(SHAPES)
    assert {thing.colour for thing in things} == set(COLOURS)
    assert {thing.place for thing in things} == set(range(len(PLACES)))


def test_the_packaged_picture_is_answered_as_the_docs_say() -> None:
    """Questions and answers are those of docs/images.md; the picture is what `sample.py` draws."""
    asked = re.findall(r'^    "(.+\?)",  # (.+)$', DOCS.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(asked) == 7
    with open_image(demo.picture_path()) as picture, Engine("demo-vision", num_ctx=256, parallel=1) as engine:
        assert np.array_equal(np.asarray(picture), sample())
        assert [(question, ask(engine, picture, question)) for question, _ in asked] == asked
        assert asked[0][1] in (ROOT / "README.md").read_text(encoding="utf-8")


def test_one_shape_alone_is_named_right() -> None:
    """Each shape in each colour; one in nine places each."""
    things = [
        Thing(shape, colour, (8 * i + j) % 9) for i, shape in enumerate(SHAPES) for j, colour in enumerate(COLOURS)
    ]
    wrong = []
    with Engine("demo-vision", num_ctx=256, parallel=1) as engine:
        for number, thing in list(enumerate(things))[:: scaled(1, quick=5)]:
            scene = Scene((thing,))
            answer = ask(engine, fromarray(draw(scene, Random(number), number)), "What is in the picture?")
            wrong += [] if answer == describe(scene) else [(describe(scene), answer)]
    assert wrong == []


def test_a_shape_that_pillow_draws_on_a_plain_ground_is_named_right() -> None:
    """As people draw one to try the model: a pure colour, no noise, smooth or not."""
    wrong = []
    with Engine("demo-vision", num_ctx=256, parallel=1) as engine:
        for shape, box, answer in PILLOW:
            for ground in ("white", "lightgrey", "black"):
                colour = answer.split()[1]
                image = new("RGB", (200, 200), ground)
                getattr(Draw(image), shape)(box, fill=colour)
                said = ask(engine, image, "What is in the picture?")
                wrong += [] if ground == colour or said == answer else [(answer, ground, said)]
    assert wrong == []


@pytest.mark.parametrize("drawn", ["as in training", "by Pillow", "as JPEG"])
def test_one_shape_in_a_fresh_picture_is_named_right(drawn: str) -> None:
    """All but one in fifty: of any size, in any place; Pillow's stars stand on two tips."""
    wrong, n = [], scaled(300, quick=50)
    with Engine("demo-vision", num_ctx=256, parallel=1) as engine:
        for number in range(FRESH, FRESH + n):
            scene, image = one_by_pillow(number) if drawn == "by Pillow" else one_drawn(number)
            answer = ask(engine, as_jpeg(image) if drawn == "as JPEG" else image, "What is in the picture?")
            wrong += [] if answer == describe(scene) else [(describe(scene), answer)]
    assert len(wrong) <= n // 50, wrong


def one_drawn(number: int) -> tuple[Scene, Image]:
    scene, pixels = alone(number)
    return scene, fromarray(pixels)
