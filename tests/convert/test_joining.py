from __future__ import annotations

from functools import partial
from pathlib import Path
from unittest.mock import patch

import gguf
import numpy as np
import pytest

from ollama_engine import Engine, SamplingParams
from ollama_engine.convert.joining import join_model
from ollama_engine.errors import ModelFormatError
from ollama_engine.ml.gguf.gguf_file import GGUFFile
from tests.support.tiny import write_tiny_llama

SPLIT_KEYS = {"split.no", "split.count", "split.tensors.count"}


def write_split_llama(folder: Path) -> list[Path]:
    """The tiny llama in parts, as the gguf package splits it."""
    folder.mkdir()
    with patch.object(gguf, "GGUFWriter", partial(gguf.GGUFWriter, split_max_tensors=8)):
        write_tiny_llama(folder / "tiny-F32.gguf", metadata={"general.file_type": 0})
    parts = sorted(folder.iterdir())
    assert [part.name for part in parts] == [f"tiny-F32-{n:05d}-of-00003.gguf" for n in (1, 2, 3)]
    return parts


def test_the_joined_file_is_the_whole_one(tmp_path: Path) -> None:
    whole = write_tiny_llama(tmp_path / "whole.gguf", metadata={"general.file_type": 0}).path
    parts, reports = write_split_llama(tmp_path / "parts"), []
    sizes = join_model(parts[1], tmp_path / "joined.gguf", progress=lambda done, total: reports.append((done, total)))
    assert sizes.before == sum(part.stat().st_size for part in parts)
    assert reports[-1][0] == reports[-1][1] > 0
    with GGUFFile(tmp_path / "joined.gguf") as joined, GGUFFile(whole) as expected:
        assert not SPLIT_KEYS & set(joined.metadata)
        assert set(joined.metadata) == set(expected.metadata)
        for key, value in expected.metadata.items():
            assert np.array_equal(joined.metadata[key], value), key
        assert list(joined.tensors) == list(expected.tensors)
        for name, tensor in expected.tensors.items():
            copy = joined.tensors[name]
            assert (copy.dtype, copy.shape) == (tensor.dtype, tensor.shape)
            bytes_ = [
                Path(file.path).read_bytes()[info.offset : info.offset + info.nbytes]
                for file, info in ((joined, copy), (expected, tensor))
            ]
            assert bytes_[0] == bytes_[1], name
    answers = []
    for path in (whole, tmp_path / "joined.gguf"):
        with Engine(path, num_ctx=64, threads=1) as engine:
            answers.append(engine.generate("ab", SamplingParams(temperature=0, max_tokens=4)).tokens)
    assert answers[0] == answers[1]


def test_a_part_that_is_missing(tmp_path: Path) -> None:
    parts = write_split_llama(tmp_path / "parts")
    parts[2].unlink()
    with pytest.raises(ModelFormatError, match="of these are missing"):
        join_model(parts[0], tmp_path / "joined.gguf")
    assert not (tmp_path / "joined.gguf").exists()
