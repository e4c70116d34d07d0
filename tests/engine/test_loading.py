"""Opening an Engine: options that take effect or are refused, files that cannot be run, memory that is not there."""

from __future__ import annotations

import copy
import pickle
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from ollama_engine import Engine, SamplingParams, demo
from ollama_engine.config import EngineConfig
from ollama_engine.errors import (
    ClosedError,
    ConfigError,
    ContextOverflowError,
    ModelFormatError,
    NoMemoryError,
    UnsupportedModelError,
)
from ollama_engine.kvcache import causal, mask
from ollama_engine.ml.device.hostmem import available_bytes
from ollama_engine.ml.device.memory import MemoryReport
from ollama_engine.ml.gguf.gguf_file import GGUFFile
from ollama_engine.runner.load import loading, memory_plan
from tests.support.tiny import write_tiny_llama

PROMPT = [1, 2, 3, 4, 5, 6, 7]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_tiny_llama(tmp_path_factory.mktemp("tiny") / "tiny.gguf").path


# -- options -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"num_ctx": 0}, "num_ctx"),
        ({"num_ctx": -5}, "num_ctx"),
        ({"num_ctx": 1.5}, "num_ctx"),
        ({"num_ctx": True}, "num_ctx"),
        ({"num_ctx": 1 << 40}, "num_ctx"),
        ({"parallel": 0}, "parallel"),
        ({"parallel": 1025}, "parallel"),
        ({"batch_size": 0}, "batch_size"),
        ({"batch_size": 1 << 20}, "batch_size"),
        ({"threads": 0}, "threads"),
        ({"threads": 513}, "threads"),
        ({"threads": "2"}, "threads"),
        ({"threads": 1.5}, "threads"),
        ({"gpu_layers": -1}, "gpu_layers"),
        ({"gpu_layers": "all"}, "gpu_layers"),
        ({"main_gpu": -1}, "main_gpu"),
        ({"main_gpu": 999}, "main_gpu"),
        ({"cpu_experts": -1}, "cpu_experts"),
        ({"tensor_split": []}, "tensor_split"),
        ({"tensor_split": [-1, 2]}, "tensor_split"),
        ({"tensor_split": [0.0]}, "tensor_split"),
        ({"tensor_split": ["a"]}, "tensor_split"),
        ({"tensor_split": 3}, "tensor_split"),
        ({"tensor_split": [1] * 99}, "tensor_split"),
        ({"flash_attention": "yes"}, "flash_attention"),
        ({"flash_attention": 1}, "flash_attention"),
        ({"flash_attention": None}, "flash_attention"),
        ({"kv_cache_type": "q5_0"}, "kv_cache_type"),
        ({"kv_cache_type": None}, "kv_cache_type"),
        ({"kv_cache_type": "q8_0"}, "blocks of 32"),
        ({"kv_cache_type": "q4_0", "flash_attention": "off"}, "needs flash attention"),
        ({"mmap": 1}, "mmap"),
    ],
    ids=str,
)
def test_options_out_of_range(path: str, options: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        Engine(path, **{"num_ctx": 64, **options})


@pytest.mark.parametrize(
    "options",
    [
        {"threads": 1},
        {"mmap": False},
        {"flash_attention": "on"},
        {"flash_attention": "off"},
        {"flash_attention": True},
        {"flash_attention": False},
        {"batch_size": 1},
        {"batch_size": 1 << 14},
        {"num_ctx": 7, "parallel": 1},
        {"num_ctx": np.int64(64)},
        {"kv_cache_type": "f32"},
        {"gpu_layers": 0},
    ],
    ids=str,
)
def test_options_take_effect_and_leave_the_answer(path: str, options: dict[str, Any]) -> None:
    with Engine(path, num_ctx=64, threads=1) as engine:
        expected = engine.logits(PROMPT)
    with Engine(path, **{"num_ctx": 64, "threads": 1, **options}) as engine:
        np.testing.assert_allclose(engine.logits(PROMPT), expected, atol=1e-2)
        assert engine.info.threads == options.get("threads", 1)
        assert engine.info.flash_attention is (options.get("flash_attention") not in ("off", False))
        cpu = engine.memory.devices[-1]
        assert (cpu.mapped == 0) is (options.get("mmap") is False)
        assert getattr(engine.config, next(iter(options))) in (*options.values(), "on", "off")


@pytest.mark.cpu_only
def test_the_cache_has_num_ctx_cells_for_each_of_parallel(path: str) -> None:
    def cache_bytes(**options: Any) -> int:
        with Engine(path, **options) as engine:
            return engine.memory.devices[-1].cache

    cell = 2 * 2 * 2 * 16 * 2
    assert cache_bytes(num_ctx=512, parallel=3) == 512 * 3 * cell
    assert cache_bytes(num_ctx=512, parallel=3, kv_cache_type="f32") == 2 * 512 * 3 * cell


@pytest.mark.cpu_only
def test_a_window_needs_cells_for_itself_what_can_be_resumed_and_a_batch(tmp_path: Path) -> None:
    path = write_tiny_llama(tmp_path / "w.gguf", sliding_window=64).path
    with Engine(path, num_ctx=100_000, parallel=2, batch_size=128, threads=1) as engine:
        assert engine.memory.devices[-1].cache == (2 * (64 + 1024) + 128) * 2 * 2 * 2 * 16 * 2
        assert engine.logits([3] * 700).shape == (700, 320)


def test_a_context_beyond_the_models_is_logged(path: str, caplog: pytest.LogCaptureFixture) -> None:
    with Engine(path, num_ctx=1024, threads=1) as engine:
        assert "num_ctx 1024 is more than the 512" in caplog.text
        assert engine.info.num_ctx == engine.config.num_ctx == 1024


@pytest.mark.cpu_only
@pytest.mark.parametrize(("trained", "num_ctx"), [(256, 256), (4096, 4096), (100_000, 4096)])
def test_the_default_context_is_the_models_up_to_a_bound(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, trained: int, num_ctx: int
) -> None:
    path = write_tiny_llama(tmp_path / "m.gguf", n_ctx=trained).path
    with Engine(path, parallel=1, threads=1) as engine:
        assert engine.info.num_ctx == engine.config.num_ctx == num_ctx
        assert engine.memory.devices[-1].cache == num_ctx * 2 * 2 * 2 * 16 * 2
        with pytest.raises(ContextOverflowError, match=f"num_ctx is {num_ctx}"):
            engine.generate([5] * (num_ctx + 1))
    assert "more than" not in caplog.text


# -- progress ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mmap", [True, False])
@pytest.mark.parametrize("model", ["tiny", "q4_0"])
def test_progress_rises_to_the_total(path: str, tmp_path: Path, model: str, mmap: bool) -> None:
    if model == "q4_0":
        path = write_tiny_llama(tmp_path / "q.gguf", dtype="q4_0", n_embd=256, n_ff=512).path
    calls: list[tuple[int, int]] = []
    Engine(path, num_ctx=64, mmap=mmap, progress=lambda done, total: calls.append((done, total))).close()
    done = [d for d, _ in calls]
    assert done == sorted(set(done))
    assert {total for _, total in calls} == {done[-1]}
    assert len(calls) <= 102


def test_an_exception_of_the_progress_callback_ends_the_loading(path: str) -> None:
    def stop(done: int, total: int) -> None:
        raise InterruptedError("enough")

    before = threading.active_count()
    with pytest.raises(InterruptedError, match="enough"):
        Engine(path, num_ctx=64, progress=stop)
    assert threading.active_count() == before


# -- memory ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [{"num_ctx": 1 << 24, "parallel": 64}, {"num_ctx": 1 << 22, "parallel": 64, "batch_size": 1 << 16}],
    ids=str,
)
def test_a_context_that_does_not_fit_is_refused_with_the_plan(path: str, options: dict[str, Any]) -> None:
    before = threading.active_count()
    with pytest.raises(NoMemoryError) as caught:
        Engine(path, **options)
    report = caught.value.report
    assert isinstance(report, MemoryReport)
    assert report.devices[-1].device == "CPU"
    assert report.devices[-1].cache > available_bytes()
    assert path in str(caught.value)
    assert str(report) in str(caught.value)
    assert isinstance(caught.value, MemoryError)
    assert threading.active_count() == before


@pytest.fixture
def without_kv_indices() -> Iterator[None]:
    """A cache that attends by masks, as on devices without our kernel."""
    with patch.object(causal, "suits_paging", lambda *_: False):
        yield


@pytest.mark.usefixtures("without_kv_indices")
def test_masks_are_planned_and_reported(path: str) -> None:
    masks = 192 * 512 * 2  # f16, for a full batch over all cells
    with Engine(path, num_ctx=256, parallel=2, batch_size=192, threads=1) as engine:
        taken = engine.memory.devices[-1]
        assert taken.work == masks + engine._loaded.backend.work_bytes()
    room = taken.cache + masks - 1
    with (
        patch.object(memory_plan, "available_bytes", lambda: room),
        pytest.raises(NoMemoryError, match="for masks") as told,
    ):
        Engine(path, num_ctx=256, parallel=2, batch_size=192)
    assert isinstance(told.value.report, MemoryReport)
    assert told.value.report.devices[-1].work >= masks


@pytest.mark.cpu_only
def test_lists_are_planned_for_batches_of_small_batch(path: str) -> None:
    lists = 2 * 512 * 4  # int32, for two sequences that share all cells
    with Engine(path, num_ctx=256, parallel=2, batch_size=64, threads=1) as engine:
        taken = engine.memory.devices[-1]
        assert taken.work == lists + engine._loaded.backend.work_bytes()
    room = taken.cache + lists - 1
    with patch.object(memory_plan, "available_bytes", lambda: room), pytest.raises(NoMemoryError, match="for masks"):
        Engine(path, num_ctx=256, parallel=2, batch_size=64)


@pytest.mark.usefixtures("without_kv_indices")
def test_no_memory_for_masks_says_what_they_take(path: str) -> None:
    before = threading.active_count()
    with (
        patch.object(mask.np, "full", side_effect=MemoryError),
        pytest.raises(NoMemoryError, match="192 tokens over 524288 cells takes 192 MiB; lower batch_size") as told,
    ):
        Engine(path, num_ctx=1 << 18, parallel=2, batch_size=192)
    assert isinstance(told.value.report, MemoryReport)
    assert str(told.value.report) in str(told.value)
    assert threading.active_count() == before


# -- files -------------------------------------------------------------------------------------------------------------


def test_files_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Engine(tmp_path / "missing.gguf")
    with pytest.raises(IsADirectoryError):
        Engine(tmp_path)


@pytest.mark.parametrize("what", [7, None, [], "a\0b.gguf", "a\ud800.gguf"])
def test_what_is_no_path_is_refused(what: Any) -> None:
    with pytest.raises(ConfigError, match="a model is the path of a GGUF file"):
        Engine(what)


def test_progress_that_cannot_be_called(path: str) -> None:
    with pytest.raises(ConfigError, match=r"progress is a function of \(bytes done, bytes in all\), got 5"):
        Engine(path, num_ctx=64, progress=5)  # type: ignore[arg-type]


def test_an_engine_and_its_sessions_are_not_copied(path: str) -> None:
    with Engine(path, num_ctx=64, threads=1) as engine, engine.session() as session:
        for owner in (engine, session):
            for act in (copy.copy, copy.deepcopy, pickle.dumps):
                with pytest.raises(ConfigError, match="cannot be copied or pickled"):
                    act(owner)
        assert engine.generate([1, 2], SamplingParams(max_tokens=1)).usage.completion_tokens <= 1


def test_a_tensor_name_that_is_not_utf8(path: str, tmp_path: Path) -> None:
    data = Path(path).read_bytes()
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(data.replace(b"blk.0.attn_q.weight", b"blk.0.attn_\xff.weight"))
    with pytest.raises(ModelFormatError, match="is not UTF-8; the file is damaged"):
        Engine(damaged, num_ctx=64)


@pytest.mark.parametrize(
    "content", [b"", b"GG", b"#!/bin/sh\n" * 100, b"PK\x03\x04" + bytes(1000), b"GGUF" + bytes(100)]
)
def test_files_that_are_no_gguf(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "other.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelFormatError, match=r"other\.gguf"):
        Engine(path)


def test_a_file_that_ends_too_early(path: str, tmp_path: Path) -> None:
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(Path(path).read_bytes()[:-100])
    with pytest.raises(ModelFormatError, match=r"cut\.gguf"):
        Engine(cut)


def test_a_vocabulary_only_file(tmp_path: Path) -> None:
    names = write_tiny_llama(tmp_path / "full.gguf").weights
    path = write_tiny_llama(tmp_path / "vocab.gguf", tensors=dict.fromkeys(names)).path
    with pytest.raises(ModelFormatError, match="vocabulary-only"):
        Engine(path)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"general.architecture": "mamba"}, "'mamba' is not supported; supported: .*llama"),
        ({"tokenizer.ggml.model": "rwkv"}, "rwkv"),
    ],
    ids=str,
)
def test_models_that_are_unknown_here(tmp_path: Path, changes: dict[str, Any], told: str) -> None:
    path = write_tiny_llama(tmp_path / "x.gguf", metadata=changes).path
    with pytest.raises(UnsupportedModelError, match=told):
        Engine(path)


def test_paths_of_any_kind(path: str) -> None:
    for given in (path, Path(path)):
        with Engine(given, num_ctx=64, threads=1) as engine:
            assert engine.info.path == path
            assert repr(engine) == f"Engine({path!r})"


def test_the_demo_model_tells_a_story() -> None:
    with Engine(demo.path(), num_ctx=256) as engine:
        found = engine.generate("Once upon a time", SamplingParams(temperature=0, max_tokens=40))
    assert len(found.text.split()) > 10
    assert all(character.isprintable() or character.isspace() for character in found.text)


# -- paths -------------------------------------------------------------------------------------------------------------


def test_a_tilde_is_the_home_folder(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in settings, which no shell has read. A folder "~" is never made."""
    home, here = tmp_path / "home", tmp_path / "here"
    home.mkdir()
    here.mkdir()
    (home / "tiny.gguf").symlink_to(path)
    shutil.copy(path, home / "draft.gguf")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(here)
    for model in ("~/tiny.gguf", Path("~/tiny.gguf")):
        with Engine(model, num_ctx=64, threads=1, prefix_store="~/prefixes", draft_model="~/draft.gguf") as engine:
            assert engine.generate(PROMPT, max_tokens=2).tokens
    assert (home / "prefixes").is_dir()
    assert not list(here.iterdir())
    with Engine("~/tiny.gguf", num_ctx=64, threads=1) as engine, engine.session() as session:
        session.append(PROMPT)
        session.save("~/chat.session")
        assert engine.load_session("~/chat.session").tokens == session.tokens
        list(engine.map_batches([PROMPT], max_tokens=1, checkpoint=Path("~/answers.jsonl")))
        with GGUFFile(Path("~/tiny.gguf")) as gguf:
            assert gguf.path == str(home / "tiny.gguf")
    assert {"chat.session", "answers.jsonl"} <= {file.name for file in home.iterdir()}
    for store in ("~nobody2/x", Path("./~nobody2/x")):  # which pathlib makes the same
        with pytest.raises(OSError, match=f"no home folder of this name; write {here}/~nobody2/x for a folder here"):
            Engine("~/tiny.gguf", num_ctx=64, threads=1, prefix_store=store)
    assert not list(here.iterdir())
    (here / "~" / "prefixes").mkdir(parents=True)
    with Engine(home / "tiny.gguf", num_ctx=64, threads=1, prefix_store="~/prefixes"):
        assert not list((here / "~" / "prefixes").iterdir()), "another program made it by mistake"
    Engine(home / "tiny.gguf", num_ctx=64, threads=1, prefix_store=here / "~nobody2" / "x").close()
    (here / "~" / "tiny.gguf").touch()
    with pytest.raises(ModelFormatError, match=r"^~/tiny.gguf"):
        Engine("~/tiny.gguf")


# -- a file that is open already ---------------------------------------------------------------------------------------


def test_an_open_file_is_loaded_and_closed_with_the_model(path: str) -> None:
    file = GGUFFile(path)
    loaded = loading.load(file, EngineConfig(num_ctx=64, threads=1))
    assert loaded.gguf is file
    assert loaded.path == path
    loaded.close()
    with pytest.raises(ClosedError):
        _ = file.version


def test_an_open_file_is_closed_where_it_cannot_be_loaded(path: str) -> None:
    file = GGUFFile(path)
    with pytest.raises(NoMemoryError), patch.object(memory_plan, "available_bytes", lambda: 0):
        loading.load(file, EngineConfig(num_ctx=64, threads=1))
    with pytest.raises(ClosedError):
        _ = file.version
