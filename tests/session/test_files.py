"""Session files: what they bring back, here, in another process and in other caches, and what is refused."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from ollama_engine import Engine, Session
from ollama_engine.errors import ClosedError, ContextOverflowError, SessionFormatError
from ollama_engine.runner.load import caches
from ollama_engine.runner.session import file as session_file
from tests.support.mixed_model import mixed_llama
from tests.support.tiny import write_tiny_llama
from tests.support.tiny_answers import greedy

IDS = [5, 77, 200, 31, 8, 19, 4] * 6
DIGEST = 32


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_tiny_llama(tmp_path_factory.mktemp("tiny") / "tiny.gguf", n_layer=2, n_embd=128, seed=4).path


@pytest.fixture(scope="module")
def engine(path: str) -> Iterator[Engine]:
    with open_engine(path) as made:
        yield made


def open_engine(path: str, **options: Any) -> Engine:
    return Engine(path, **{"num_ctx": 128, "parallel": 2, "threads": 1, "verify": True, **options})


def answered(engine: Engine) -> Session:
    """A session whose last token is not computed."""
    session = engine.session()
    session.append(IDS)
    session.generate(greedy(5))
    return session


@pytest.fixture
def saved(engine: Engine, tmp_path: Path) -> Path:
    with answered(engine) as session:
        session.save(tmp_path / "saved")
    return tmp_path / "saved"


# -- what comes back ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [
    {}, {"flash_attention": "off"}, {"kv_cache_type": "f32"}, {"kv_cache_type": "q8_0"}, {"kv_cache_type": "bf16"},
    {"kv_cache_type": "q5_1"},
], ids=str)  # fmt: skip
def test_a_loaded_session_goes_on_as_the_saved_one(path: str, tmp_path: Path, options: dict[str, Any]) -> None:
    with open_engine(path, **options) as engine, answered(engine) as session:
        session.save(tmp_path / "saved")
        expected = session.fork().generate(greedy(12))
        # Between cells of others, so that rows come to lie elsewhere, and next to each other.
        with engine.session() as other:
            other.append([3] * 20)
            with engine.load_session(tmp_path / "saved") as loaded:
                assert loaded.tokens == session.tokens
                found = loaded.generate(greedy(12))
    assert (found.tokens, found.usage.cached_tokens) == (expected.tokens, len(IDS) + 4)

    with open_engine(path, **options) as fresh:
        before = fresh.metrics.prompt_tokens
        loaded = fresh.load_session(tmp_path / "saved")
        assert fresh.metrics.prompt_tokens == before
        assert loaded.generate(greedy(12)).tokens == expected.tokens
        assert fresh.metrics.prompt_tokens == before + 1


def test_scattered_cells_come_back_byte_for_byte(path: str, tmp_path: Path) -> None:
    with open_engine(path) as engine:
        sessions = [engine.session() for _ in range(3)]
        for i in range(10):
            for session in sessions:
                session.append([i + 1] * (i % 3 + 1))
        sessions[1].save(tmp_path / "saved")
        loaded = engine.load_session(tmp_path / "saved")
        loaded.save(tmp_path / "again")
        assert (tmp_path / "again").read_bytes() == (tmp_path / "saved").read_bytes()
        assert loaded.generate(greedy(12)).tokens == sessions[1].generate(greedy(12)).tokens
        engine._core.check()


def test_another_process_goes_on(path: str, saved: Path, engine: Engine) -> None:
    code = (
        "import sys; from ollama_engine import Engine, SamplingParams\n"
        "with Engine(sys.argv[1], num_ctx=128, parallel=1, threads=1) as engine:\n"
        "    session = engine.load_session(sys.argv[2])\n"
        "    found = session.generate(SamplingParams(temperature=0, max_tokens=12, "
        "logit_bias={318: float('-inf'), 319: float('-inf')}))\n"
        "    print(found.usage.cached_tokens, *found.tokens)\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code, path, saved], capture_output=True, text=True, timeout=60, check=True
    )
    expected = answered(engine).generate(greedy(12)).tokens
    assert [int(word) for word in result.stdout.split()] == [len(IDS) + 4, *expected]


@pytest.mark.parametrize(("first", "then"), [("on", "off"), ("off", "on")])
def test_flash_attention_may_change(path: str, tmp_path: Path, first: Any, then: Any) -> None:
    with open_engine(path, flash_attention=first) as engine, answered(engine) as session:
        session.save(tmp_path / "saved")
        expected = session.generate(greedy(12)).tokens
    with open_engine(path, flash_attention=then) as engine:
        found = engine.load_session(tmp_path / "saved").generate(greedy(12))
        assert (found.tokens, found.usage.cached_tokens) == (expected, len(IDS) + 4)


@pytest.mark.parametrize("flash", ["on", "off"])
def test_a_file_is_the_same_however_values_lie(path: str, saved: Path, tmp_path: Path, flash: Any) -> None:
    """In a cache that others use too."""
    with open_engine(path, flash_attention=flash) as engine:
        others = [engine.session() for _ in range(2)]
        for length in range(1, 5):
            for other in others:
                other.append([length] * length)
        engine.load_session(saved).save(tmp_path / "again")
        assert (tmp_path / "again").read_bytes() == saved.read_bytes()
        assert [other.tokens for other in others] == [(1, 2, 2, 3, 3, 3, 4, 4, 4, 4)] * 2
        for other in others:
            alone = engine.generate(list(other.tokens), greedy(12), cache=False).tokens
            assert other.generate(greedy(12)).tokens == alone


def test_for_another_cache_type_the_tokens_are_computed(path: str, saved: Path) -> None:
    with open_engine(path, kv_cache_type="bf16") as engine:
        loaded = engine.load_session(saved)
        assert engine.metrics.prompt_tokens == len(IDS) + 5
        found = loaded.generate(greedy(12))
        assert found.tokens == engine.generate(list(loaded.tokens[:-12]), greedy(12), cache=False).tokens
        assert found.usage.cached_tokens == len(IDS) + 4


@pytest.mark.parametrize("memory", [8, 1024])
@pytest.mark.parametrize("flash", ["on", "off"])
def test_windows_and_chunks_come_back(tmp_path: Path, memory: int, flash: Any) -> None:
    model = write_tiny_llama(tmp_path / "mixed.gguf", n_layer=6, seed=3).path
    options = {"kv_cache_type": "f32", "flash_attention": flash, "num_ctx": 256, "batch_size": 32}
    with patch.object(caches, "RESUME_TOKENS", memory), mixed_llama():
        with open_engine(model, **options) as engine, answered(engine) as session:
            session.append(IDS)
            session.save(tmp_path / "saved")
            fork = session.fork()
            fork.rewind(5)
            expected, rewound = session.generate(greedy(12)).tokens, fork.generate(greedy(12)).tokens
        with open_engine(model, **options) as engine:
            loaded = engine.load_session(tmp_path / "saved")
            found = loaded.fork().generate(greedy(12))
            assert (found.tokens, found.usage.cached_tokens) == (expected, 2 * len(IDS) + 4)
            loaded.rewind(5)
            assert loaded.generate(greedy(12)).tokens == rewound
            engine._core.check()


def test_a_shifted_session_stays_its_own(path: str, tmp_path: Path) -> None:
    with open_engine(path) as engine:
        session = engine.session()
        session.append(IDS * 2)
        session.generate(greedy(60), on_overflow="shift", num_keep=4)
        session.save(tmp_path / "saved")
        expected = session.fork().generate(greedy(3))
        tokens = session.tokens
    with open_engine(path) as engine:
        loaded = engine.load_session(tmp_path / "saved")
        assert engine.generate(list(tokens), greedy(1)).usage.cached_tokens == 4
        found = loaded.generate(greedy(3))
        assert (found.tokens, found.usage.cached_tokens) == (expected.tokens, len(tokens) - 1)


def test_an_empty_session_comes_back_empty(engine: Engine, tmp_path: Path) -> None:
    engine.session().save(tmp_path / "saved")
    loaded = engine.load_session(tmp_path / "saved")
    loaded.append("Hello")
    assert loaded.tokens == tuple(engine.tokenize("Hello"))


def test_what_the_cache_has_lost_is_computed_anew(engine: Engine, tmp_path: Path) -> None:
    session = answered(engine)
    engine._core.cache_manager.forget()  # as after a step that failed; nothing computes now
    session.save(tmp_path / "saved")
    loaded = engine.load_session(tmp_path / "saved")
    assert loaded.tokens == session.tokens
    assert loaded.generate(greedy(12)).tokens == session.generate(greedy(12)).tokens


def test_loading_beside_a_running_request(path: str, saved: Path) -> None:
    with open_engine(path) as engine:
        expected = engine.generate([9, 8, 7], greedy(100), cache=False).tokens
        running = engine.stream([9, 8, 7], greedy(100))
        found = [token for _ in range(5) for token in next(running).tokens]
        for _ in range(3):
            engine.load_session(saved).close()
        assert (*found, *[token for chunk in running for token in chunk.tokens]) == expected


# -- what is refused ---------------------------------------------------------------------------------------------------


def test_a_file_cut_short_anywhere_is_refused(engine: Engine, saved: Path) -> None:
    whole = saved.read_bytes()
    for size in [*range(0, 400, 7), *np.linspace(400, len(whole) - 1, 40, dtype=int)]:
        saved.write_bytes(whole[:size])
        with pytest.raises(SessionFormatError, match=r"cut short|damaged|no session|another model"):
            engine.load_session(saved)
    saved.write_bytes(whole + b"\0")
    with pytest.raises(SessionFormatError, match="damaged"):
        engine.load_session(saved)


def test_a_changed_byte_anywhere_is_refused(engine: Engine, saved: Path) -> None:
    whole = saved.read_bytes()
    for at in [*range(0, 400, 3), *np.linspace(400, len(whole) - 1, 40, dtype=int)]:
        changed = bytearray(whole)
        changed[at] ^= 0x10
        saved.write_bytes(changed)
        with pytest.raises(SessionFormatError):
            engine.load_session(saved)


def rewritten(whole: bytes, **fields: Any) -> bytes:
    """With other fields in its header, and a checksum that fits."""
    magic, version, n = session_file._PREFIX.unpack(whole[: session_file._PREFIX.size])
    begin = session_file._PREFIX.size
    header = json.dumps({**json.loads(whole[begin : begin + n]), **fields}).encode()
    data = session_file._PREFIX.pack(magic, fields.get("version", version), len(header)) + header
    data += whole[begin + n : -DIGEST]
    return data + hashlib.sha256(data).digest()


@pytest.mark.parametrize(("fields", "told"), [
    ({"version": 2}, "version 4 can be read, this is version 2"),
    ({"fingerprint": "0" * 64}, "another model"),
    ({"n_tokens": 1 << 40}, "makes no sense"), ({"n_tokens": 1 << 23}, "announces"),
    ({"n_tokens": -1}, "makes no sense"),
    ({"length": 48}, "makes no sense"), ({"exact": 46}, "makes no sense"), ({"exact": 1.5}, "makes no sense"),
    ({"cells": [1, 2]}, "makes no sense"), ({"cells": None}, "makes no sense"), ({"cells": [46 - 1]}, "announces"),
    ({"row_bytes": [[1 << 40] * 4]}, "makes no sense"), ({"row_bytes": [[1 << 30] * 4]}, "announces"),
    ({"dtype": 7}, "makes no sense"), ({"length": 3, "cells": [46]}, "makes no sense"),
], ids=str)  # fmt: skip
def test_a_header_that_cannot_be_is_refused(engine: Engine, saved: Path, fields: dict[str, Any], told: str) -> None:
    saved.write_bytes(rewritten(saved.read_bytes(), **fields))
    with pytest.raises(SessionFormatError, match=told):
        engine.load_session(saved)


@pytest.mark.parametrize(("at", "value", "told"), [
    (0, -1, "does not know"), (46, 320, "does not know"), (47 + 5, 4, "does not have"), (47 + 45, 46, "does not have"),
])  # fmt: skip
def test_numbers_out_of_range_are_refused(engine: Engine, saved: Path, at: int, value: int, told: str) -> None:
    """Tokens come first, then positions."""
    whole = bytearray(saved.read_bytes())
    _, _, n = session_file._PREFIX.unpack(whole[: session_file._PREFIX.size])
    begin = session_file._PREFIX.size + n + 4 * at
    whole[begin : begin + 4] = value.to_bytes(4, "little", signed=True)
    saved.write_bytes(rewritten(bytes(whole)))
    with pytest.raises(SessionFormatError, match=told):
        engine.load_session(saved)


def test_other_models_are_refused(saved: Path, tmp_path: Path) -> None:
    sizes = {"n_layer": 2, "n_embd": 128, "seed": 4}
    others = [
        {**sizes, "seed": 5}, {**sizes, "rope_base": 20000.0}, {**sizes, "dtype": "f16"}, {**sizes, "n_head_kv": 4},
        {**sizes, "metadata": {"tokenizer.ggml.add_bos_token": False}},
    ]  # fmt: skip
    for i, other in enumerate(others):
        model = write_tiny_llama(tmp_path / f"{i}.gguf", **other).path
        with open_engine(model) as engine, pytest.raises(SessionFormatError, match="another model"):
            engine.load_session(saved)
    same = write_tiny_llama(tmp_path / "same.gguf", **sizes, metadata={"general.name": "renamed"}).path
    with open_engine(same) as engine:
        assert len(engine.load_session(saved)) == len(IDS) + 5


def test_a_smaller_context_is_refused(path: str, saved: Path) -> None:
    told = r"47 tokens.*num_ctx is 32"
    with open_engine(path, num_ctx=32) as engine, pytest.raises(ContextOverflowError, match=told):
        engine.load_session(saved)


def test_no_room_is_an_error_and_leaves_nothing(path: str, saved: Path) -> None:
    with open_engine(path) as engine:
        full = [engine.session() for _ in range(2)]
        for i, session in enumerate(full):
            session.append([i] * 110)
        with pytest.raises(ContextOverflowError, match="sessions and requests hold"):
            engine.load_session(saved)
        full.pop().close()
        assert len(engine.load_session(saved)) == len(IDS) + 5
        engine._core.check()


def test_files_that_are_not_there(engine: Engine, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        engine.load_session(tmp_path / "nothing")
    with pytest.raises(IsADirectoryError):
        engine.load_session(tmp_path)
    for path, kind in ((tmp_path / "no" / "file", FileNotFoundError), (tmp_path, IsADirectoryError)):
        with pytest.raises(kind) as caught:
            answered(engine).save(path, overwrite=True)
        assert (caught.value.filename, caught.value.filename2) == (str(path), None)
    assert os.listdir(tmp_path) == []


def test_a_link_stays_one(engine: Engine, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("folder/saved")
    answered(engine).save(tmp_path / "link", overwrite=True)
    assert (tmp_path / "link").is_symlink()
    assert os.listdir(tmp_path / "folder") == ["saved"]
    assert (tmp_path / "folder" / "saved").stat().st_mode & 0o777 == 0o600


def test_an_interrupt_after_the_file_has_its_name_is_one(engine: Engine, tmp_path: Path) -> None:
    def replace(source: str, target: str) -> None:
        os.rename(source, target)
        raise KeyboardInterrupt

    session = answered(engine)
    with patch.object(os, "replace", replace), pytest.raises(KeyboardInterrupt):
        session.save(tmp_path / "saved", overwrite=True)
    assert engine.load_session(tmp_path / "saved").tokens == session.tokens


def test_a_write_that_fails_leaves_the_old_file(engine: Engine, saved: Path) -> None:
    whole = saved.read_bytes()
    with patch.object(os, "fsync", side_effect=OSError("disk full")), pytest.raises(OSError, match="disk"):
        answered(engine).save(saved, overwrite=True)
    assert saved.read_bytes() == whole
    assert os.listdir(saved.parent) == [saved.name]


def test_a_closed_engine_loads_nothing(path: str, saved: Path) -> None:
    with open_engine(path) as engine:
        pass
    with pytest.raises(ClosedError):
        engine.load_session(saved)
