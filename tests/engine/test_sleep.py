"""Engine.sleep: memory is given back, and whatever is asked afterwards gets the bits that it gets without a sleep."""

from __future__ import annotations

import mmap
import os
import re
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from ollama_engine import Engine, SamplingParams, demo
from ollama_engine.errors import ClosedError, ConfigError, DeadlineError, DeviceError, NoMemoryError
from ollama_engine.ml.weights import kept_pages
from ollama_engine.runner.core.engine_core import EngineCore
from tests.engine.test_media import AFTER, BEFORE, CAT, open_engine
from tests.engine.test_media import prompt as media_prompt
from tests.engine.test_steering_requests import ENDLESS, FOREVER
from tests.models import families
from tests.models.variants import prompt
from tests.support.emulated import NEEDS_ADVICE
from tests.support.engine_thread import held, held_in, idle
from tests.support.same_bits import Bits, bits, same
from tests.support.suite import slow_except
from tests.support.waiting import WAIT_SECONDS, ended, eventually, join

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="pages are given back on Linux only")

CASES = ("llama", "gemma3", "lfm2", "mamba2", "deepseek-v2")
"""Windows, states beside keys and values, states alone, latent vectors."""
OPTIONS: dict[str, dict[str, Any]] = {
    "f16": {},
    "q8_0": {"kv_cache_type": "q8_0"},
    "permuted": {"flash_attention": "off"},
    "copied": {"mmap": False},
    "drafted": {"draft_model": "a copy of the demo"},
}
TEXT = "Once there was a little fox who lived in a big wood. One day she found a red ball. "


def params(n: int = 12) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=n, logprobs=2, logit_bias=families.BANNED)


@pytest.fixture
def engine() -> Iterator[Engine]:
    with Engine(demo.path(), num_ctx=256, threads=1, verify=True) as made:
        yield made


def conversation(engine: Engine, said: Any, between: Callable[[Engine], object]) -> list[Bits]:
    """A session, its fork, and a prompt that begins like an earlier one, each gone on with after `between`."""
    plain = params()
    with engine.session() as session:
        session.append(said)
        answers = [session.generate(params=plain), engine.generate(said, plain)]
        fork = session.fork()
        for _ in range(2):
            between(engine)
            answers += [session.generate(params=plain), fork.generate(params=plain)]
            again = engine.generate(said, plain)
            assert again.usage.cached_tokens > 0, "the prefix is still there"
            answers.append(again)
        fork.close()
    return [bits(answer) for answer in answers]


def check_the_same_bits(opened: Callable[[], Engine], said: Any) -> None:
    def asleep(engine: Engine) -> None:
        engine.sleep()
        assert engine.is_sleeping

    with opened() as engine:
        expected = conversation(engine, said, lambda engine: None)
    with opened() as engine:
        found = conversation(engine, said, asleep)
        assert not engine.is_sleeping
    assert [i for i, pair in enumerate(zip(found, expected, strict=True)) if not same(*pair)] == []


@pytest.mark.parametrize("name", slow_except(CASES, "gemma3", "lfm2"))
def test_models_go_on_where_they_were(name: str, tmp_path: Path) -> None:
    path = families.converted(families.case(name), tmp_path)
    check_the_same_bits(lambda: Engine(path, num_ctx=256, threads=1, verify=True), prompt(60))


@pytest.mark.parametrize("kind", slow_except(OPTIONS, "f16", "copied"))
def test_caches_and_weights_go_on_where_they_were(kind: str, tmp_path: Path) -> None:
    options = dict(OPTIONS[kind])
    if "draft_model" in options:  # a model's own file is refused
        options["draft_model"] = shutil.copy(demo.path(), tmp_path / "draft.gguf")
    check_the_same_bits(lambda: Engine(demo.path(), num_ctx=256, threads=2, verify=True, **options), TEXT * 3)


@pytest.mark.parametrize("kind", slow_except(("wide", "cross"), "cross"))
def test_images_go_on_where_they_were(kind: str, tmp_path: Path) -> None:
    path = str(families.converted(families.case("llama"), tmp_path))
    said = media_prompt(BEFORE, CAT, AFTER)
    with ExitStack() as stack:
        check_the_same_bits(lambda: stack.enter_context(open_engine(stack, path, kind)), said)


def test_prefixes_are_stored_before(tmp_path: Path) -> None:
    said = list(range(20, 620))
    with Engine(demo.path(), num_ctx=1024, threads=1, prefix_store=tmp_path, verify=True) as engine:
        expected = engine.generate(said, params()).tokens
        engine.sleep()
        assert engine.is_sleeping
        idle(engine)
        eventually(lambda: engine.metrics.prefix_store_written_tokens >= 512)  # copied before, and then written
        with Engine(demo.path(), num_ctx=1024, threads=1, prefix_store=tmp_path) as other:
            found = other.generate(said, params())
            left = other.metrics.prefix_store_left_tokens  # a busy machine may find it quicker to compute some
            assert found.usage.cached_tokens + left >= 512
        assert engine.is_sleeping
        assert found.tokens == engine.generate(said, params()).tokens == expected


def rss(kind: str) -> int:
    """Resident bytes of this process: RssAnon, its own; RssFile, of mapped files."""
    status = Path("/proc/self/status").read_text()
    (kib,) = re.findall(rf"{kind}:\s+(\d+) kB", status)
    return int(kib) << 10


def mapped(path: str) -> int:
    """Resident bytes of a mapped file."""
    maps = Path("/proc/self/smaps").read_text()
    found = re.findall(rf"{re.escape(os.path.realpath(path))}\n(?:.*\n)*?Rss:\s+(\d+) kB", maps)
    return sum(map(int, found)) << 10


@NEEDS_ADVICE
def test_memory_is_given_back_and_taken_again() -> None:
    with Engine(demo.path(), num_ctx=1024, parallel=16, threads=1) as engine:
        (device,) = engine.memory.devices
        engine.generate(TEXT * 4, max_tokens=8)
        for _ in range(2):
            before, weights = rss("RssAnon"), mapped(demo.path())
            assert weights > 0.9 * device.mapped
            engine.sleep()
            asleep = rss("RssAnon")
            assert before - asleep > 0.95 * (device.cache + device.graph) - (8 << 20)
            assert mapped(demo.path()) <= mmap.PAGESIZE
            engine.wake_up()
            assert rss("RssAnon") - asleep > 0.95 * device.cache
            assert rss("RssAnon") - before < 0.2 * device.cache
            assert mapped(demo.path()) > 0.9 * device.mapped


def test_a_sleep_waits_for_requests(engine: Engine) -> None:
    request = engine.submit("Once", replace(ENDLESS, max_tokens=100), format=FOREVER)
    engine.sleep()
    assert request.done
    assert len(request.result().tokens) == 100
    with held_in(EngineCore, "step") as is_held:
        running = engine.submit("Once", max_tokens=4)
        is_held()
        sleeper = threading.Thread(target=engine.sleep)
        sleeper.start()
        assert not running.done
    join(sleeper)
    assert running.done


def test_who_does_not_want_to_wait_is_told(engine: Engine) -> None:
    with engine.stream("One day", ENDLESS, format=FOREVER, on_overflow="shift") as endless:
        next(iter(endless))
        with pytest.raises(DeadlineError, match="still had requests"):
            engine.sleep(timeout=0)
        assert not engine.is_sleeping
    engine.sleep(timeout=WAIT_SECONDS)
    assert engine.is_sleeping


@pytest.mark.parametrize("timeout", [-1, float("nan"), float("inf"), True, "a", 10**400])
def test_a_timeout_is_a_number_of_seconds(engine: Engine, timeout: Any) -> None:
    with pytest.raises(ConfigError, match="timeout"):
        engine.sleep(timeout=timeout)


def test_bookkeeping_lets_it_sleep(engine: Engine) -> None:
    """Sleeping again, dropped sessions, and questions about it need no memory."""
    session, other = engine.session(), engine.session()
    for each in (session, other):
        each.append(TEXT)
        each.generate(max_tokens=4)
    engine.sleep()
    engine.sleep()
    session.close()
    del other
    engine.slots(), engine.metrics, engine.tokenize("Once"), repr(engine), engine.memory
    idle(engine)
    assert engine.is_sleeping
    engine.wake_up()
    engine.wake_up()
    assert not engine.is_sleeping


@pytest.mark.parametrize("asked", ["embeddings", "logits", "session"])
def test_all_kinds_of_requests_wake_it(engine: Engine, asked: str) -> None:
    with engine.session() as session:
        session.append("Once there was")
        calls: dict[str, Callable[[], object]] = {
            "embeddings": lambda: [one.vector for one in engine.embeddings("a cat")],
            "logits": lambda: engine.logits("a cat").tobytes(),
            "session": lambda: session.generate(max_tokens=5, temperature=0).tokens,
        }
        expected = calls[asked]()
        session.rewind(5 if asked == "session" else 0)
        engine.sleep()
        found = calls[asked]()
    assert not engine.is_sleeping
    assert repr(found) == repr(expected)


def test_threads_ask_while_others_put_it_to_sleep(engine: Engine) -> None:
    prompts = [f"{name} went to the" for name in ("Tom", "Ann", "Ben")]
    expected = {said: engine.generate(said, params()).tokens for said in prompts}
    wrong: list[str] = []

    def ask(said: str) -> None:
        wrong.extend(said for _ in range(10) if engine.generate(said, params()).tokens != expected[said])

    def sleep() -> None:
        for _ in range(10):
            engine.sleep()

    threads = [threading.Thread(target=ask, args=(said,)) for said in prompts]
    threads += [threading.Thread(target=sleep) for _ in range(2)]
    for thread in threads:
        thread.start()
    join(*threads)
    assert wrong == []


def test_it_is_closed_while_it_sleeps() -> None:
    engine = Engine(demo.path(), num_ctx=256, threads=1)
    session = engine.session()
    session.append("Once")
    engine.sleep()
    engine.close()
    session.close()
    for call in (engine.sleep, engine.wake_up, lambda: engine.is_sleeping):
        with pytest.raises(ClosedError):
            call()


def test_closing_ends_a_sleep_that_waits(engine: Engine) -> None:
    endless = engine.stream("One day", ENDLESS, format=FOREVER, on_overflow="shift")
    next(endless)
    raised: list[BaseException | None] = []
    with held(engine):
        sleeper = threading.Thread(target=lambda: raised.append(ended(engine.sleep)))
        sleeper.start()
        eventually(lambda: engine._engine_thread._inbox.qsize() > 0)
        closer = threading.Thread(target=engine.close)
        closer.start()
        eventually(lambda: engine.closed)
    join(sleeper, closer)
    assert isinstance(raised[0], ClosedError)


def test_where_nothing_can_be_written_it_stays_awake(engine: Engine, tmp_path: Path) -> None:
    expected = engine.generate(TEXT, params()).tokens
    with pytest.raises(FileNotFoundError, match=r"name another folder: .*none"):
        engine.sleep(folder=tmp_path / "none")
    with pytest.raises(ConfigError, match="folder"):
        engine.sleep(folder="")
    with (
        open(os.devnull, "rb") as unwritable,
        patch("ollama_engine.runner.core.sleeping._file_in", return_value=unwritable),
        pytest.raises(OSError, match=r"Bad file descriptor: .* name another folder: '/dev'"),
    ):
        engine.sleep()
    assert not engine.is_sleeping
    assert engine.generate(TEXT, params()).tokens == expected


def test_where_memory_is_short_it_sleeps_on(engine: Engine) -> None:
    expected = engine.generate(TEXT, params()).tokens
    engine.sleep()
    with patch.object(kept_pages, "available_bytes", lambda: 1000):
        for call in (lambda: engine.generate(TEXT, params()), engine.wake_up, lambda: engine.embeddings("a")):
            with pytest.raises(NoMemoryError, match="MiB are needed"):
                call()
        assert engine.is_sleeping
    assert engine.generate(TEXT, params()).tokens == expected


def test_a_file_that_changes_meanwhile_closes_it(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(Path(demo.path()).read_bytes())
    with Engine(path, num_ctx=256, threads=1) as engine:
        engine.sleep()
        os.utime(path, (1, 1))
        with pytest.raises(ClosedError, match="has changed"):
            engine.generate("Once")


def test_other_devices_stay_awake(engine: Engine) -> None:
    refused = DeviceError("not that of CUDA0")
    with patch.object(kept_pages.KeptPages, "__init__", side_effect=refused), pytest.raises(DeviceError):
        engine.sleep()
    assert not engine.is_sleeping
    assert engine.generate("Once", max_tokens=2).tokens


def test_the_file_is_gone_afterwards(engine: Engine, tmp_path: Path) -> None:
    def files() -> list[str]:
        links = [Path("/proc/self/fd") / name for name in os.listdir("/proc/self/fd")]
        targets = [os.readlink(link) for link in links if link.is_symlink()]
        return [target for target in targets if target.startswith(str(tmp_path))]

    engine.generate(TEXT, max_tokens=2)
    engine.sleep(folder=tmp_path)
    assert len(files()) == 1
    assert list(tmp_path.iterdir()) == []
    engine.wake_up()
    assert files() == []
