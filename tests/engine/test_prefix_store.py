"""The prefix store: what was computed before a restart is read, and no bit of an answer changes."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from ollama_engine import Completion, Engine, SamplingParams, demo
from ollama_engine.config import EngineConfig
from ollama_engine.errors import ClosedError, ConfigError
from ollama_engine.kvcache.saving import CellSaver
from ollama_engine.runner.core import engine_thread, prefix_reads
from ollama_engine.runner.core.engine_core import EngineCore
from ollama_engine.runner.prefix_store import prefix_store as store_module
from ollama_engine.runner.prefix_store.block_folder import BlockFolder
from ollama_engine.runner.prefix_store.block_format import check_block
from ollama_engine.runner.prefix_store.folder_contents import ABOUT, HITS, LOCK, files_of
from ollama_engine.runner.prefix_store.prefix_store import PrefixStore
from ollama_engine.runner.prefix_store.step_budget import StepBudget
from ollama_engine.runner.prefix_store.stored_prefix import rows_of_block
from ollama_engine.runner.schedule.prefix_blocks import BLOCK, LEAST, most_in_memory
from ollama_engine.server.settings import SETTINGS
from tests.engine.test_media import open_engine
from tests.engine.test_media import prompt as media_prompt
from tests.models import families
from tests.models.variants import prompt
from tests.models.vision import harness
from tests.models.vision.pictures import Picture
from tests.support.emulated import TIMES_AS_LONG
from tests.support.same_bits import bits, same
from tests.support.suite import scaled, slow_except
from tests.support.tiny import write_tiny_llama
from tests.support.waiting import eventually

N_CTX = 1300
N_PROMPT = 868
WHOLE = N_PROMPT // BLOCK * BLOCK
"""What is stored of a prompt of so many tokens."""

CASES = ("gemma3", "lfm2", "falcon-h1", "mamba2", "deepseek-v2", "llama4", "gemma4")
"""Windows, states beside keys and values, states alone, latent vectors, chunks, layers that share keys and values."""


def params(n: int = 12, **fields: Any) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=n, logprobs=2, logit_bias=families.BANNED, **fields)


def opened(path: str, store: Path | bool, **options: Any) -> Engine:
    settings = {"num_ctx": N_CTX, "threads": 1, "parallel": 2, "verify": True, **options}
    return Engine(path, prefix_store=store, **settings)


def answers(path: str, store: Path | bool, prompts: Sequence[Any], **options: Any) -> list[Completion]:
    """Answers one after the other, of an engine that is opened for them."""
    with opened(path, store, **options) as engine:
        return [engine.generate(ids, params()) for ids in prompts]


def cached(found: Sequence[Completion]) -> list[int]:
    return [answer.usage.cached_tokens for answer in found]


def alike(found: Sequence[Completion], expected: Sequence[Completion]) -> bool:
    return all(same(bits(a), bits(b)) for a, b in zip(found, expected, strict=True))


def logprobs_of(answer: Completion) -> list[float]:
    assert answer.logprobs is not None
    return [entry.logprob for entry in answer.logprobs]


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_tiny_llama(tmp_path_factory.mktemp("tiny") / "tiny.gguf", n_layer=2, n_embd=128, seed=4).path


@pytest.mark.parametrize("name", slow_except(CASES, "gemma3", "falcon-h1"))
def test_a_restart_goes_on_from_what_is_stored(name: str, tmp_path: Path) -> None:
    path = str(families.converted(families.case(name), tmp_path))
    ids = prompt(N_PROMPT)
    asked = [ids, [*ids[:562], *prompt(80, seed=3)]]
    for kv_cache_type in ("f32", "iq4_nl") if name == "gemma3" else ("f32",):
        store = tmp_path / kv_cache_type
        expected = answers(path, False, asked, kv_cache_type=kv_cache_type)
        first, again = (answers(path, store, asked[:1], kv_cache_type=kv_cache_type)[0] for _ in range(2))
        other = answers(path, store, asked[1:], kv_cache_type=kv_cache_type)[0]
        assert alike([first, again, other], [expected[0], expected[0], expected[1]])
        assert cached([first, again, other]) == [0, WHOLE, 512]  # of a recurrent model these blocks have states
        with opened(path, store, kv_cache_type=kv_cache_type) as engine:
            blocks = engine._core.queue.stored._reads._store.layout  # type: ignore[union-attr]
            block = sum((end - begin) * sum(blocks.row_bytes[kind])
                        for kind, (begin, end) in enumerate(rows_of_block(1, blocks.first_seen)))  # fmt: skip
            bound = engine.memory.serving["prefixes on their way to disk and back"]
            assert bound >= most_in_memory(block)
            assert bound == most_in_memory(block) or name == "llama4", "chunks begin within a block"


@pytest.mark.parametrize(("name", "least"), [("llama", 0), ("gemma3", BLOCK - 1)])
def test_a_prompt_that_ends_with_a_block(name: str, least: int, tmp_path: Path) -> None:
    """Its last input alone is computed again, where layers see everything: a window has dropped what that one sees."""
    path, ids = str(families.converted(families.case(name), tmp_path)), prompt(WHOLE)
    (expected,) = answers(path, False, [ids])
    found = [answers(path, tmp_path / "store", [ids])[0] for _ in range(2)]
    assert alike(found, [expected] * 2)
    assert cached(found) == [0, WHOLE - 1 - least]


def test_what_shapes_keys_and_values_keeps_prompts_apart(llama: str, tmp_path: Path) -> None:
    ids = prompt(N_PROMPT)
    with opened(llama, tmp_path) as engine:
        engine.generate(ids, params(), cache_salt="mine")
    with opened(llama, tmp_path) as engine:
        found = [engine.generate(ids, params(), cache_salt=salt) for salt in ("other", None, "mine")]
    assert cached(found) == [0, 0, WHOLE]
    for kv_cache_type in ("q8_0", "q4_0", "iq4_nl"):  # rows of the last two have as many bytes
        with opened(llama, tmp_path, kv_cache_type=kv_cache_type) as engine:
            assert engine.generate(ids, params(), cache_salt="mine").usage.cached_tokens == 0
    with opened(llama, tmp_path) as engine:
        assert engine.generate(ids, params(), cache_salt="mine", cache=False).usage.cached_tokens == 0
    with (
        patch("ollama_engine.runner.session.stored.build_digest", lambda: "another"),
        opened(llama, tmp_path) as engine,
    ):
        assert engine.generate(ids, params(), cache_salt="mine").usage.cached_tokens == 0


def test_images_of_cross_attention_are_stored(tmp_path: Path) -> None:
    """A prompt goes on behind its images, without encoding them; another image leaves what is before it.

    Behind images log-probabilities are not compared to the bit: from memory they are not the same bits, either, since
    ggml's attention to images gives others where fewer rows are computed together.
    """
    pytest.importorskip("PIL", reason="Pillow is not installed")
    case = next(case for case in harness.cases() if case.name == "mllama")
    path, text = harness.converted(case, tmp_path), "a dog and a cat. " * 30
    one, two, three = (Picture(40, 30, seed) for seed in (1, 2, 3))
    asked = [case.segments((text, *parts)) for parts in
             ([one, text, two, three, text], [one, text, two, three, text, "Who?"], [two, text], [text])]  # fmt: skip
    options = {"num_ctx": N_CTX, "parallel": 2, "verify": True}

    def answered(store: Path | bool, prompts: Sequence[Any]) -> list[Completion]:
        with harness.engine(path, prefix_store=store, **options) as engine:
            layout = engine._core.queue.stored._reads._store.layout if store else None  # type: ignore[union-attr]
            bound = engine.memory.serving.get("prefixes on their way to disk and back", 0)
            assert layout is None or bound >= most_in_memory(layout.block_bytes - 1000), "an image is in the plan"
            return [engine.generate(ids, greedy) for ids in prompts]

    greedy = SamplingParams(temperature=0, max_tokens=12, logprobs=2, logit_bias=case.banned)
    expected = [answered(False, [ids])[0] for ids in asked]
    found = [answered(tmp_path / "store", [ids])[0] for ids in (asked[0], *asked)]
    for answer, wanted in zip(found, [expected[0], *expected], strict=True):
        assert answer.tokens == wanted.tokens
        assert np.allclose(logprobs_of(answer), logprobs_of(wanted), rtol=0, atol=1e-5)
    assert alike([found[0], found[4]], [expected[0], expected[3]])
    with harness.engine(path) as engine:
        before = len(engine.tokenize(text)) // BLOCK * BLOCK
    assert before >= LEAST
    whole = [answer.usage.prompt_tokens - 1 for answer in expected[:2]]
    assert cached(found)[1:3] == [n // BLOCK * BLOCK for n in whole]
    assert cached(found)[3:] == [before, before]


def test_an_image_is_a_part_of_its_prompt(llama: str, tmp_path: Path) -> None:
    ids = prompt(N_PROMPT)

    def ask(image: bytes) -> Completion:
        with ExitStack() as stack:
            engine = open_engine(stack, llama, "bidirectional", num_ctx=N_CTX, batch_size=64, prefix_store=tmp_path)
            return engine.generate(media_prompt(ids[: BLOCK - 4], image, ids[BLOCK:]), params())

    cat, dog = bytes(range(40, 52)), bytes(range(60, 72))
    found = [ask(image) for image in (cat, cat, dog)]
    assert cached(found) == [0, WHOLE, 0], "the second block begins within the image"
    assert alike(found[1:2], found[:1])


def damage(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7] + bytes(7))


def test_what_is_damaged_or_gone_is_computed(llama: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    ids = prompt(N_PROMPT)
    expected = answers(llama, tmp_path, [ids])
    files = sorted(file.path for file in files_of(tmp_path))
    for spoil in (Path.unlink, damage):
        for path in files[::5]:
            spoil(path)
            found = answers(llama, tmp_path, [ids])
            assert alike(found, expected)
            assert cached(found)[0] < WHOLE
            assert sorted(file.path for file in files_of(tmp_path)) == files, "it is written anew"
            check_block(path)
    assert caplog.text.count("is damaged") == len(files[::5])


FULL = """
import resource, sys
from ollama_engine import Engine, SamplingParams
path, folder, limit, *ids = sys.argv[1:]
with Engine(path, num_ctx=1300, threads=1, prefix_store=folder) as engine:
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit), int(limit)))
    answer = engine.generate(list(map(int, ids)), SamplingParams(temperature=0, max_tokens=12, logprobs=1))
print(*(entry.logprob.hex() for entry in answer.logprobs))
"""


@pytest.mark.timeout(180 * TIMES_AS_LONG)  # processes that compute beside others
def test_a_full_disk_loses_nothing_else(tmp_path: Path) -> None:
    """The system cuts files off: those of some layers fit, others never, and in the end all do."""
    path, store = str(families.converted(families.case("gemma3"), tmp_path)), tmp_path / "store"
    ids, greedy = prompt(N_PROMPT), SamplingParams(temperature=0, max_tokens=12, logprobs=1)

    def said_of(answer: Completion) -> list[str]:
        assert answer.logprobs is not None
        return [entry.logprob.hex() for entry in answer.logprobs]

    with opened(path, False) as engine:
        expected = said_of(engine.generate(ids, greedy))
    found = list[int]()
    for limit in (100, 14_000, 1 << 30):
        command = [sys.executable, "-c", FULL, path, str(store), str(limit), *map(str, ids)]
        said = subprocess.run(command, capture_output=True, text=True, timeout=120 * TIMES_AS_LONG, check=True).stdout
        assert said.split() == expected
        files = list(files_of(store))
        assert not any(file.path.name.startswith(".") for file in files)
        for file in files:
            check_block(file.path)
        found.append(len(files))
    assert 0 == found[0] < found[1] < found[2]
    with opened(path, store) as engine:
        answer = engine.generate(ids, greedy)
    assert (said_of(answer), answer.usage.cached_tokens) == (expected, WHOLE)


def test_prompts_that_begin_alike_are_read_once(llama: str, tmp_path: Path) -> None:
    ids = prompt(N_PROMPT)
    asked = [[*ids, *prompt(20, seed=seed)] for seed in range(6)]
    expected = answers(llama, False, asked)
    answers(llama, tmp_path, [ids])
    with opened(llama, tmp_path, parallel=6) as engine:
        found = engine.generate(asked, params())
        assert engine.metrics.prefix_store_read_tokens == WHOLE
    assert min(cached(found)) >= WHOLE
    assert alike(found, expected)


def test_others_are_computed_while_a_prompt_is_read(llama: str, tmp_path: Path) -> None:
    """The disk answers when the test says so."""
    ids, go = prompt(N_PROMPT), Event()
    (expected,) = answers(llama, tmp_path, [ids])
    read = BlockFolder.read

    def slow(self: BlockFolder, *args: Any) -> Any:
        go.wait(60)
        return read(self, *args)

    with patch.object(BlockFolder, "read", slow), opened(llama, tmp_path, parallel=1) as engine:
        waits = engine.submit(ids, params())
        assert engine.generate(prompt(30, seed=9), params()).usage.cached_tokens == 0
        cancelled = engine.submit([*ids, 5], params())
        cancelled.cancel()
        assert engine.metrics.queued >= 1
        go.set()
        answer = waits.result(60)
    assert answer.usage.cached_tokens == WHOLE
    assert alike([answer], [expected])


def test_a_request_that_leaves_while_it_is_read(llama: str, tmp_path: Path) -> None:
    ids, entered, go = prompt(N_PROMPT), Event(), Event()
    answers(llama, tmp_path, [ids])
    read = BlockFolder.read

    def slow(self: BlockFolder, *args: Any) -> Any:
        entered.set()
        go.wait(60)
        return read(self, *args)

    with patch.object(BlockFolder, "read", slow), opened(llama, tmp_path) as engine:
        request = engine.submit(ids, params())
        assert entered.wait(60)
        request.cancel()
        go.set()
        assert engine.generate(ids, params()).tokens == engine.generate(ids, params(), cache=False).tokens


def test_no_room_for_what_is_read(llama: str, tmp_path: Path) -> None:
    """Cells that sessions hold are not taken: the prompt is computed, or refused as it is without a store."""
    ids = prompt(N_PROMPT)
    expected = answers(llama, tmp_path, [ids])
    with opened(llama, tmp_path, parallel=1) as engine:
        session = engine.session()
        session.append(prompt(N_CTX - N_PROMPT - 40, seed=8))
        found = [engine.generate(ids, params())]
        assert alike(found, expected)
        assert len(session) == N_CTX - N_PROMPT - 40


def test_reading_that_is_slower_than_computing_is_left_out(llama: str, tmp_path: Path) -> None:
    ids = prompt(N_PROMPT)
    answers(llama, tmp_path, [ids])
    with patch.object(PrefixStore, "pays", lambda *_: False), opened(llama, tmp_path) as engine:
        assert engine.generate(ids, params()).usage.cached_tokens == 0
        assert engine.metrics.prefix_store_left_tokens == WHOLE
        engine.generate(ids, params())
        assert engine.metrics.prefix_store_left_tokens == WHOLE, "it is in memory now"
    with opened(llama, tmp_path) as engine:
        store: Any = engine._core.queue.stored._reads
        pays: Callable[..., bool] = store._store.pays
        assert pays(1000, 10**6, 1e9), "nothing is known"
        store._store._read_speed.note(10**6, 0.5)
        store._store._put_speed.note(10**6, 0.5)
        assert (pays(1000, 10**6, 900.0), pays(1000, 10**6, 1100.0), pays(1000, 10**6, None)) == (True, False, True)
        assert not pays(BLOCK - 1, 1, 1.0)


def test_what_others_wrote_into_its_cells_is_not_stored(llama: str, tmp_path: Path) -> None:
    """A history waits to be copied until the disk keeps up; its cells may be another's by then."""
    prompts = [prompt(N_PROMPT, seed=seed) for seed in range(3)]
    expected = answers(llama, False, prompts)
    with opened(llama, tmp_path, parallel=1) as engine, patch.object(PrefixStore, "room", new=False):
        assert cached([engine.generate(ids, params()) for ids in prompts]) == [0, 0, 0]  # each needs the cells before
    found = [answers(llama, tmp_path, [ids])[0] for ids in prompts]
    assert alike(found, expected)
    assert cached(found) == [0, 0, WHOLE]


def test_writing_is_bounded_while_requests_run_alone(llama: str, tmp_path: Path) -> None:
    """Each step renews what the writer may compute; behind the last one there is no bound."""
    said = list[str]()

    class Heard(StepBudget):
        def next_step(self) -> None:
            said.append("step")

        def no_steps(self) -> None:
            said.append("none")

    with (
        patch.object(store_module, "StepBudget", Heard),
        opened(llama, tmp_path) as engine,
    ):
        engine.generate([3] * 20, params(8))
        eventually(lambda: said[-1:] == ["none"])
        assert said.count("step") >= 8


def test_closing_while_a_step_computes(llama: str, tmp_path: Path) -> None:
    """A prompt's history counts its rows from the launch on; what computes them may not have ended at the close."""
    ids = prompt(N_PROMPT)
    (expected,) = answers(llama, tmp_path / "good", [ids])
    launch, launched = EngineCore._launch, Event()

    def last(self: EngineCore, record: Any) -> None:
        launch(self, record)
        far = any(sequence.submitted > 512 for sequence in self.queue.running.values())
        if far and len(self.queue.running) == 2 and not launched.is_set():
            cancelled.cancel()
            self.queue._swept_at = float("-inf")
            engine._engine_thread.close(wait=False)
            launched.set()

    with (
        opened(llama, tmp_path / "store", batch_size=513) as engine,
        patch.object(EngineCore, "_launch", last),
    ):
        other = engine.submit(prompt(20, seed=7), params(1000))
        cancelled = engine.submit(ids, params())
        for request in (cancelled, other):
            with pytest.raises(ClosedError):
                request.result(60)
    assert launched.is_set()
    found = {file.path.name: file.path for file in files_of(tmp_path / "store")}
    good = {file.path.name: file.path for file in files_of(tmp_path / "good")}
    assert found
    assert all(path.read_bytes() == good[name].read_bytes() for name, path in found.items())
    assert alike(answers(llama, tmp_path / "store", [ids]), [expected])


def test_a_disk_that_is_stuck_holds_up_no_answer(llama: str, tmp_path: Path) -> None:
    ids, go = prompt(N_PROMPT), Event()
    answers(llama, tmp_path, [ids])
    stuck: Any = lambda *_: go.wait(120) and False  # noqa: E731
    patience, longest = prefix_reads.PATIENCE, engine_thread.FLUSH_SECONDS
    try:
        prefix_reads.PATIENCE = engine_thread.FLUSH_SECONDS = 0.1
        with patch.object(BlockFolder, "has", stuck), opened(llama, tmp_path) as engine:
            asked = [[*ids, number] for number in range(3)] + [prompt(N_PROMPT, seed=seed) for seed in (3, 4, 5)]
            found = engine.generate(asked, params(2))
        assert [len(answer.tokens) for answer in found] == [2] * len(asked)
        assert not go.is_set(), "it has closed meanwhile"
    finally:
        prefix_reads.PATIENCE, engine_thread.FLUSH_SECONDS = patience, longest
        go.set()


def test_what_is_read_makes_way_for_what_runs(llama: str, tmp_path: Path) -> None:
    """Prompts that are read hold cells until all is there; an answer that needs these goes on."""
    long, go = [prompt(1290, seed=seed) for seed in (1, 2)], Event()
    (expected,) = answers(llama, False, [prompt(200)])
    for ids in long:
        answers(llama, tmp_path, [ids])
    read = PrefixStore._read_block

    def all_but_the_last(self: PrefixStore, reading: Any, kinds: Any, block: int) -> Any:
        if block == 1290 // BLOCK - 1:
            go.wait(60)
        return read(self, reading, kinds, block)

    with patch.object(PrefixStore, "_read_block", all_but_the_last), opened(llama, tmp_path) as engine:
        running = engine.submit(prompt(200), params(1000))
        waiting = [engine.submit(ids, params()) for ids in long]
        answer = running.result(60)
        go.set()
        for request in waiting:
            request.result(60)
    assert len(answer.tokens) == 1000
    assert answer.tokens[:12] == expected.tokens


@pytest.mark.parametrize("method", ["saving", "restore"])
def test_a_lack_of_memory_ends_no_engine(method: str, llama: str, tmp_path: Path, caplog: Any) -> None:
    ids = prompt(N_PROMPT)
    (expected,) = answers(llama, tmp_path, [ids])
    other = prompt(N_PROMPT, seed=5)
    with patch.object(CellSaver, method, side_effect=MemoryError("none")), opened(llama, tmp_path) as engine:
        found = [engine.generate(ids, params()), engine.generate(other, params())]
        assert engine.generate(ids, params()).usage.cached_tokens
    assert alike(found[:1], [expected])
    assert "none" in caplog.text


def test_options(llama: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"prefix_store is on \(True\), off \(False\), or the path of .* 5"):
        opened(llama, 5)  # type: ignore[arg-type]
    taken = tmp_path / "file"
    taken.write_text("")
    with pytest.raises(OSError, match=r"prefix_store cannot keep prefixes here: it is a file; name a folder.*file"):
        opened(llama, taken)
    with opened(llama, False) as engine:
        engine.generate(prompt(N_PROMPT), params())
        assert engine.metrics.prefix_store_written_tokens == 0


def test_the_bound_is_4_gib_or_a_tenth_of_the_free_disk(llama: str, tmp_path: Path) -> None:
    for free, option, expected in ((1 << 40, None, 4 << 30), (10 << 30, None, 1 << 30), (10 << 30, 5 << 30, 5 << 30)):
        disk = patch("ollama_engine.runner.session.stored.shutil.disk_usage", return_value=SimpleNamespace(free=free))
        with disk, opened(llama, tmp_path, prefix_store_bytes=option) as engine:
            reads: Any = engine._core.queue.stored._reads
            assert reads._store._folder._most_bytes == expected


def test_names_of_files_tell_nothing_of_a_prompt(llama: str, tmp_path: Path) -> None:
    """A hash, which begins with that of the model: who does not know the whole prompt cannot look for it."""
    answers(llama, tmp_path, [prompt(N_PROMPT)])
    names = [path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()]
    others = {name for name in names if not re.fullmatch(r"[0-9a-f]{32}/[0-9a-f]{2}/[0-9a-f]{62}\.0", name)}
    assert {name.rsplit("/")[-1] for name in others} <= {ABOUT, HITS, LOCK}
    assert len(names) - len(others) >= WHOLE // BLOCK
    found = b"".join((tmp_path / name).read_bytes() for name in others)
    assert found.replace(b"\n", b"") == json.dumps({"model": Path(llama).name}).encode()


def test_files_are_for_this_user_alone(llama: str, tmp_path: Path) -> None:
    """Whatever the process gives others by default."""
    store, before = tmp_path / "store", os.umask(0)
    try:
        assert cached([answers(llama, store, [prompt(N_PROMPT)])[0] for _ in range(2)])[1] == WHOLE
    finally:
        os.umask(before)
    found = [store, *store.rglob("*")]
    assert {ABOUT, HITS} <= {path.name for path in found}
    for path in found:
        assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600), path


def test_who_turns_it_on_is_told_that_nothing_is_encrypted() -> None:
    """In the help of the option, in the engine's docstring, and in the server's setting."""
    (option,) = (field for field in dataclasses.fields(EngineConfig) if field.name == "prefix_store")
    told = (option.metadata["help"], Engine.__doc__, SETTINGS["prefix_store"].help)
    assert all("not encrypted" in str(text) for text in told)


def test_a_bound_that_holds_no_block(llama: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for most in (0, 1000):
        found = answers(llama, tmp_path, [prompt(N_PROMPT)] * 2, prefix_store_bytes=most)
        assert cached(found) == [0, N_PROMPT - 1]
    assert not list(files_of(tmp_path))
    assert caplog.text.count("prefixes are not stored: a block of this model takes") == 2


# -- many conversations, processes that are killed ---------------------------------------------------------------------

CHILD = """
import random, sys
from ollama_engine import Engine, SamplingParams
path, folder = sys.argv[1:3]
seed, rounds, most = map(int, sys.argv[3:])
draw = random.Random(seed)
with Engine(path, num_ctx=1300, threads=1, parallel=3, prefix_store=folder, prefix_store_bytes=most) as engine:
    print("ready", flush=True)
    for _ in range(rounds):
        words = ("Once upon a time. ", "A fox. ", "The red ball. ")
        text = "".join(draw.choice(words) for _ in range(draw.randint(60, 120)))
        engine.generate("Be brief. " * 100 + text, SamplingParams(temperature=0, max_tokens=4))
print("done", flush=True)
"""


def start(folder: Path, seed: int, rounds: int, most_bytes: int = 1 << 30) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", CHILD, str(demo.path()), str(folder), str(seed), str(rounds), str(most_bytes)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def conversations(engine: Engine, draw: random.Random, n: int) -> list[Completion]:
    """Chats that begin alike and go on, in the order in which `draw` says."""
    chats = ["Be brief. " * 100 + word for word in ("Who? ", "Where? ", "When? ")]
    found = []
    for _ in range(n):
        number = draw.randrange(len(chats))
        answer = engine.generate(
            chats[number], SamplingParams(temperature=0, max_tokens=draw.randint(1, 12), logprobs=1)
        )
        found.append(answer)
        chats[number] += answer.text + draw.choice((" And then? ", " Why? " * 20))
        if len(chats[number]) > 3200:
            chats[number] = "Be brief. " * draw.choice((80, 100)) + "Now? "
    return found


def test_conversations_with_restarts_are_the_same(tmp_path: Path) -> None:
    reads = 0
    for seed in range(scaled(12, quick=2)):
        with Engine(demo.path(), num_ctx=1300, threads=1) as engine:
            expected = conversations(engine, random.Random(seed), 8)
        for _ in range(2):
            with Engine(demo.path(), num_ctx=1300, threads=1, prefix_store=tmp_path) as engine:
                assert alike(conversations(engine, random.Random(seed), 8), expected)
                reads += engine.metrics.prefix_store_read_tokens
    assert reads > 0


@pytest.mark.timeout(180 * TIMES_AS_LONG)  # processes that compute beside each other
def test_kills_lose_and_spoil_nothing(tmp_path: Path) -> None:
    """What a killed process leaves is whole blocks, or none; others go on beside it."""
    draw = random.Random(4)
    for seed in range(scaled(3, quick=1)):
        victims = [start(tmp_path, 2 * seed + number, 10_000) for number in range(2)]
        survivor = start(tmp_path, seed, 3, most_bytes=draw.choice((1 << 30, 3 << 20)))
        for victim in victims:
            assert victim.stdout is not None
            assert victim.stdout.readline() == "ready\n"
        survivor.communicate(timeout=120 * TIMES_AS_LONG)
        for victim in victims:
            victim.kill()
            victim.communicate(timeout=60 * TIMES_AS_LONG)
        assert survivor.returncode == 0
        for file in files_of(tmp_path):
            if not file.path.name.startswith("."):
                check_block(file.path)
    with Engine(demo.path(), num_ctx=1300, threads=1) as engine:
        expected = engine.generate("Be brief. " * 100, params(4))
    with Engine(demo.path(), num_ctx=1300, threads=1, prefix_store=tmp_path) as engine:
        assert alike([engine.generate("Be brief. " * 100, params(4))], [expected])
