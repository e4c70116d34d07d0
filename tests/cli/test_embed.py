"""`embed`: texts given, behind options and piped; JSON and plain numbers; options that reach the engine."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from ollama_engine.engine import Engine
from tests.cli.program import program
from tests.models import encoders, image_encoders

QUIET = ("--threads", "1")


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(encoders.converted(encoders.case("bert"), Path(tmp_path_factory.mktemp("embed"))))


@pytest.fixture(scope="module")
def engine(bert: str):
    with Engine(bert, threads=1) as opened:
        yield opened


def test_json(cli, bert: str, engine: Engine) -> None:
    result = cli("embed", bert, "a thing", "it", *QUIET)
    assert (result.code, result.err) == (0, "")
    found = [json.loads(line) for line in result.out.splitlines()]
    assert [sorted(line) for line in found] == [["dropped_tokens", "embedding", "prompt_tokens"]] * 2
    vectors = np.array([line["embedding"] for line in found], dtype=np.float32)
    np.testing.assert_array_equal(vectors, engine.embed(["a thing", "it"]))
    assert [line["prompt_tokens"] for line in found] == [len(engine.tokenize(text)) for text in ("a thing", "it")]


def test_plain_numbers_and_options(cli, bert: str, engine: Engine) -> None:
    options = ("--plain", "--dimensions", "5", "--pooling", "cls", "--no-normalize")
    expected = engine.embed("a thing", dimensions=5, pooling="cls", normalize=False)
    for args in (["a thing", *options], [*options, "a thing"], [*options, "--", "a thing"]):
        result = cli("embed", bert, *QUIET, *args)
        assert (result.code, result.err) == (0, "")
        np.testing.assert_array_equal(np.array(result.out.split(), dtype=np.float32), expected)


def test_lines_of_standard_input(bert: str, engine: Engine) -> None:
    done = program("embed", bert, *QUIET, "--plain", given=b"a thing\r\n\nit")
    assert (done.code, done.err) == (0, "")
    found = np.array([line.split() for line in done.out.decode().splitlines()], dtype=np.float32)
    np.testing.assert_allclose(found, engine.embed(["a thing", "", "it"]), atol=1e-5)
    assert program("embed", bert, *QUIET, given=b"").out == b""
    done = program("embed", bert, *QUIET, "--num-ctx", "8", given=b"it\n" * 1030 + b"a thing " * 9)
    assert (done.code, "error: line 1031: a text has" in done.err) == (1, True)
    done = program("embed", bert, *QUIET, given=b"it\nit\xff\n")
    assert (done.code, done.err.partition(";")[0]) == (1, "error: line 2: byte 3 (0xff) is not UTF-8")


@pytest.mark.parametrize("good", [1, 256, 299])
def test_lines_before_one_that_is_not_text(bert: str, good: int) -> None:
    done = program("embed", bert, *QUIET, "--plain", given=b"it\n" * good + b"it\xff\n" + b"it\n")
    assert (done.code, done.err.partition(";")[0]) == (1, f"error: line {good + 1}: byte 3 (0xff) is not UTF-8")
    assert len(done.out.splitlines()) == good


def test_long_texts(cli, bert: str) -> None:
    args = ("embed", bert, "--num-ctx", "8", *QUIET, "a thing " * 9, "it")
    result = cli(*args)
    assert result.code == 1
    assert "error: text 1: a text has " in result.err
    assert "--num-ctx is 8; shorten it, choose a larger --num-ctx where the model can take it, or let it be cut with " \
        "--truncate\n" in result.err  # fmt: skip
    result = cli(*args, "it\udcff")
    assert (result.code, result.err.partition(";")[0]) == (2, "error: text 3: byte 3 (0xff) is not UTF-8")
    result = cli(*args, "--truncate")
    assert result.code == 0
    assert [json.loads(line)["dropped_tokens"] > 0 for line in result.out.splitlines()] == [True, False]
    assert result.err.startswith("warning: 1 of 2 texts were cut, by ")


def test_a_model_that_writes_embeds_too(cli, tiny: str) -> None:
    result = cli("embed", tiny, "hello", "--num-ctx", "64", *QUIET)
    assert result.code == 0
    assert len(json.loads(result.out)["embedding"]) == 64


def test_images_stand_behind_texts(cli, tmp_path: Path) -> None:
    pytest.importorskip("PIL", reason="Pillow is not installed")
    case = next(case for case in image_encoders.cases() if case.name == "clip-dual")
    clip = str(image_encoders.converted(case, tmp_path))
    for number, picture in enumerate(image_encoders.PICTURES[:2]):
        (tmp_path / f"{number}.png").write_bytes(picture.file)
    images = [word for number in (1, 0) for word in ("--image", str(tmp_path / f"{number}.png"))]
    result = cli("embed", clip, *images, "a fox", "--plain", *QUIET)
    assert (result.code, result.err) == (0, "")
    with Engine(clip, threads=1) as engine:
        expected = [engine.embed("a fox"), *engine.embed_image([image_encoders.PICTURES[i].file for i in (1, 0)])]
    vectors = [np.fromstring(line, dtype=np.float32, sep=" ") for line in result.out.splitlines()]
    np.testing.assert_array_equal(vectors, expected)
    alone = cli("embed", clip, *images[:2], "--plain", *QUIET)
    assert (alone.code, alone.out) == (0, result.out.splitlines(keepends=True)[1])
    result = cli("embed", clip, "--image", str(tmp_path / "2.png"), *QUIET)
    assert (result.code, result.out) == (2, "")
    assert "2.png: No such file or directory" in result.err
    result = cli("embed", clip, *images, "--pooling", "mean", *QUIET)
    assert result.code == 1
    assert "error: text 1: this model makes one vector of an image" in result.err


def test_an_encoder_answers_nothing(cli, bert: str) -> None:
    result = cli("run", bert, "hello", *QUIET)
    assert result.code == 1
    assert "error: bert reads texts and writes none: it has embeddings" in result.err
    result = cli("bench", bert, *QUIET)
    assert (result.code, result.out) == (1, "")
    assert "bench measures models that write; bert only reads" in result.err
