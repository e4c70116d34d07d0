"""Gemma 3 with images: what implementations get wrong. `test_vision` compares with transformers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ollama_engine import Engine
from ollama_engine.errors import ModelFormatError
from ollama_engine.input import Input, MediaItem
from ollama_engine.ml.gguf.metadata import Metadata
from ollama_engine.models.gemma3.multimodal import Gemma3Multimodal
from ollama_engine.models.gemma3.vision import read_options
from ollama_engine.models.media_tokens import newline_runs, split_run, token_id
from ollama_engine.nn import vision
from ollama_engine.runner.core.input_processor import prompt_inputs
from tests.models.cases import difference
from tests.models.test_vision import encoded
from tests.models.vision import harness
from tests.models.vision.gemma3 import N_SOFT, TOKENS
from tests.models.vision.harness import N_TEXT
from tests.models.vision.pictures import Picture
from tests.models.vision.reference import VisionReference
from tests.support.media import item
from tests.support.tiny import SPECIALS

CASE = harness.cases()[[case.name for case in harness.cases()].index("gemma3")]
BEGIN, END, SOFT, LINE, LINES, MORE_LINES = (N_TEXT + i for i in range(len(TOKENS)))
BOS = 317


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return harness.converted(CASE, Path(tmp_path_factory.mktemp("gemma3")))


@pytest.fixture(scope="module")
def engine(path: Path) -> Iterator[Engine]:
    with harness.engine(path) as engine:
        yield engine


@pytest.fixture(scope="module")
def multimodal(engine: Engine) -> Gemma3Multimodal:
    found: Any = engine._loaded.model
    assert isinstance(found.multimodal, Gemma3Multimodal)
    return found.multimodal


def written(multimodal: Gemma3Multimodal, *parts: int | MediaItem) -> list[int]:
    """The token ids of a prompt of ids and images; each image's soft tokens as one -1."""
    given = [Input(-1, part) if isinstance(part, MediaItem) else Input(part) for part in parts]
    inputs = multimodal.post_tokenize(given)
    ids, i = [], 0
    while i < len(inputs):
        media = inputs[i].media
        ids.append(inputs[i].token if media is None else -1)
        i += 1 if media is None else media.n_inputs
    return ids


IMAGE = item(7, N_SOFT)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ((BOS, IMAGE, 65), [BOS, LINES, BEGIN, -1, END, LINES, 65]),
        ((65, LINE, IMAGE), [65, MORE_LINES, BEGIN, -1, END, LINES]),
        ((IMAGE, LINE, LINE, 65), [LINES, BEGIN, -1, END, MORE_LINES, LINE, 65]),
        ((IMAGE, IMAGE), [LINES, BEGIN, -1, END, MORE_LINES, LINE, BEGIN, -1, END, LINES]),
        ((IMAGE, LINE, IMAGE), [LINES, BEGIN, -1, END, MORE_LINES, LINES, BEGIN, -1, END, LINES]),
        ((LINE, 65, LINE), [LINE, 65, LINE]),
    ],
)
def test_newlines_that_touch_an_image_are_one_run_with_those_around_it(
    given: tuple[int | MediaItem, ...], expected: list[int], multimodal: Gemma3Multimodal
) -> None:
    """Trap: 108, 107 where the processor's text has three newlines, which are one token."""
    assert written(multimodal, *given) == expected


def test_same_batch_lies_on_the_first_soft_token(multimodal: Gemma3Multimodal) -> None:
    """Trap: on the token before the image, which may be cached while another image follows."""
    found = multimodal.post_tokenize([Input(65), Input(-1, IMAGE), Input(66)])
    groups = [(i, x.token, x.same_batch) for i, x in enumerate(found) if x.same_batch]
    assert groups == [(3, SOFT, N_SOFT - 1)]
    assert found[3].media is IMAGE
    assert multimodal.traits.bidirectional
    assert multimodal.traits.largest_group == N_SOFT == multimodal.largest_image().n_inputs


def test_image_rows_are_not_scaled(engine: Engine) -> None:
    """Trap: multiplied by sqrt(n_embd) as embeddings of tokens are, an image drowns the text."""
    golden = harness.load(CASE).answers["one"]
    found = engine.logits(CASE.segments(CASE.prompts["one"]))[golden.rows]
    scaled = golden.features[0] * np.sqrt(engine._loaded.model.n_embd)  # type: ignore[attr-defined]
    assert np.abs(scaled).mean() > 5 * np.abs(golden.features[0]).mean(), "the case would tell"
    np.testing.assert_allclose(found, golden.logits, atol=harness.TOLERANCE * golden.logits.std())


def test_a_picture_is_stretched_to_the_square_whatever_its_shape(multimodal: Gemma3Multimodal) -> None:
    from PIL import Image  # noqa: PLC0415

    halves = Image.new("RGB", (400, 20), (255, 0, 0))
    halves.paste((0, 0, 255), (200, 0, 400, 20))
    rows = multimodal.preprocess(halves).arrays["patches"].reshape(6, 6, 3, 14, 14)
    assert (rows[:, :2, 0] == 1).all()
    assert (rows[:, 4:, 2] == 1).all()
    assert (rows[:, :2, 2] == -1).all()


# -- what files say ----------------------------------------------------------------------------------------------------


def vision_metadata(**values: Any) -> Metadata:
    known = {
        "vision.block_count": 2, "vision.embedding_length": 48, "vision.feed_forward_length": 72,
        "vision.attention.head_count": 4, "vision.image_size": 896, "vision.patch_size": 14,
        **{name.replace("__", "."): value for name, value in values.items()},
    }  # fmt: skip
    return Metadata({"general.architecture": "gemma3", **{f"gemma3.{name}": value for name, value in known.items()}})


@pytest.mark.parametrize(
    ("values", "tokens"),
    [
        ({}, 256),
        ({"mm__tokens_per_image": 64}, 64),
        ({"mm_tokens_per_image": 1024}, 1024),
        ({"vision__projector__scale_factor": 8}, 64),
        ({"vision__image_size": 84, "mm__tokens_per_image": 9}, 9),
    ],
)
def test_tokens_of_an_image_in_all_dialects(values: dict[str, int], tokens: int) -> None:
    """Trap: Ollama's converter writes mm.tokens_per_image and its engine reads mm_tokens_per_image."""
    options = read_options(vision_metadata(**values), 64)
    assert options.n_tokens == tokens
    assert options.norm_eps == 1e-6


@pytest.mark.parametrize(
    "values",
    [
        {"mm__tokens_per_image": 250},
        {"mm__tokens_per_image": 0},
        {"mm__tokens_per_image": 81},
        {"vision__projector__scale_factor": 0},
        {"vision__projector__scale_factor": 5},
        {"vision__patch_size": 0},
        {"vision__patch_size": 897},
        {"vision__attention__head_count": 5},
        {"vision__block_count": 0},
    ],
)
def test_sizes_that_do_not_fit_are_refused(values: dict[str, int]) -> None:
    with pytest.raises(ModelFormatError):
        read_options(vision_metadata(**values), 64)


def test_tokens_are_found_by_key_or_by_text() -> None:
    known = Metadata({"general.architecture": "gemma3", "gemma3.image_start_token_id": 5,
                      "tokenizer.ggml.tokens": ["a", "<end_of_image>", "\n\n", "\n"]})  # fmt: skip
    assert token_id(known, "image_start_token_id", "<start_of_image>") == 5
    assert token_id(known, "image_end_token_id", "<end_of_image>") == 1
    assert newline_runs(known) == {2: 2, 1: 3}
    with pytest.raises(ModelFormatError, match=r"neither a key gemma3.other nor a token '<other>'"):
        token_id(known, "other", "<other>")


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        (["\u010a\u010a", "\u010a"], {2: 0, 1: 1}),
        (["<0x0A>", "\n\n"], {2: 1, 1: 0}),
        (["\u010a", "\n"], {1: 1}),
        (["a"], {}),
    ],
)
def test_newlines_in_every_vocabulary(tokens: list[str], expected: dict[int, int]) -> None:
    assert newline_runs(Metadata({"general.architecture": "x", "tokenizer.ggml.tokens": tokens})) == expected


def test_a_run_of_newlines_is_cut_as_added_tokens_are() -> None:
    assert split_run(33, range(1, 32)) == [31, 2]
    assert split_run(5, {1, 2}) == [2, 2, 1]
    assert split_run(0, {1}) == []


@pytest.mark.parametrize(("outtype", "tolerance"), [("f16", 1e-2), ("bf16", 5e-2), ("q8_0", 1e-1)])
def test_weights_of_other_types(outtype: str, tolerance: float, path: Path) -> None:
    """The projection, which is stored transposed, too."""
    picture = Picture(100, 60)
    expected = harness.load(CASE).answers["one"].features[0]
    with harness.engine(harness.converted(CASE, path.parent, outtype)) as engine:
        assert difference(encoded(engine, picture), expected) <= tolerance


def test_embeddings_without_amx(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the CPU has no AMX ggml computes; heads of 12 are padded for it, and cut again."""
    monkeypatch.setattr(vision, "amx_allowed", lambda: False)
    picture = Picture(100, 60)
    assert difference(encoded(engine, picture), harness.load(CASE).answers["one"].features[0]) <= harness.TOLERANCE


TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{{ '<turn>' + m['role'] + '\n' }}{% for part in m['content'] %}"
    "{% if part['type'] == 'image' %}{{ '<start_of_image>' }}{% else %}{{ part['text'] | trim }}{% endif %}"
    "{% endfor %}{{ '<end>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<turn>model\n' }}{% endif %}"
)
"""Writes images as the published template does: right behind the newline of a turn, and between texts."""


@pytest.mark.slow
@pytest.mark.reference
def test_a_chat_has_the_ids_of_transformers(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    pytest.importorskip("transformers", reason="transformers is not installed")

    case = replace(CASE, files={"tokenizer_config.json": {"bos_token": SPECIALS[0], "chat_template": TEMPLATE}})
    pictures = [Picture(30, 50), Picture(50, 30, 1)]
    contents = [
        ("user", [pictures[0], "what is it?"]),
        ("model", ["a thing"]),
        ("user", ["and", pictures[1], "\n\nthis\n", pictures[0]]),
    ]

    def messages(image: Callable[[Picture], Any]) -> list[dict[str, Any]]:
        return [
            {
                "role": role,
                "content": [
                    {"type": "text", "text": part} if isinstance(part, str) else {"type": "image", "image": image(part)}
                    for part in parts
                ],
            }
            for role, parts in contents
        ]

    reference = VisionReference(case, tmp_path / "transformers")
    expected = reference.processor.apply_chat_template(
        messages(Picture.draw), chat_template=TEMPLATE, add_generation_prompt=True, tokenize=True, return_dict=True
    )["input_ids"][0]
    with harness.engine(harness.converted(case, tmp_path)) as engine:
        segments = engine.apply_template(messages(Picture.draw))
        found = prompt_inputs(engine._loaded, segments)
        assert case.ids(found) == [int(id_) for id_ in expected]
