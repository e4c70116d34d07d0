"""Engines whose layers lie on workers: what goes wrong is an error, and this process goes on.

That the answers are right is for tests/models/test_devices.py to say.
"""

from __future__ import annotations

import contextlib
import re
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ollama_engine import Engine, SamplingParams, demo
from ollama_engine.errors import ClosedError, ConfigError, DeviceError, DeviceLostError, NoMemoryError
from tests.models.variants import VARIANTS, prompt
from tests.support.suite import slow_except
from tests.support.tiny import write_tiny_llama
from tests.support.waiting import ended, eventually
from tests.support.workers import RunningWorker, running_worker

ENDLESS: dict[str, Any] = {"temperature": 0, "max_tokens": 10**6, "on_overflow": "shift",
                           "logit_bias": {2556: float("-inf"), 2559: float("-inf")}}  # fmt: skip
"""Without the tokens that end a story."""
SHORT = SamplingParams(temperature=0, max_tokens=4)
OPTIONS: dict[str, Any] = {"num_ctx": 512, "threads": 1, "parallel": 2}


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[RunningWorker]:
    with running_worker(tmp_path) as running:
        yield running


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningWorker]:
    """A worker that no test harms."""
    with running_worker(tmp_path_factory.mktemp("worker")) as running:
        yield running


def opened(worker: RunningWorker, **options: Any) -> Engine:
    return Engine(demo.path(), devices=[worker.address], **{**OPTIONS, **options})


# -- a worker that ends ------------------------------------------------------------------------------------------------


def test_killed_while_it_answers(worker: RunningWorker) -> None:
    with opened(worker) as engine:
        stream = engine.stream("One day", **ENDLESS)
        waiting = [engine.submit("Two foxes", **ENDLESS) for _ in range(3)]
        for _ in range(3):
            next(stream)
        worker.kill()
        error = ended(lambda: list(stream))
        assert isinstance(error, (DeviceLostError, ClosedError)), error
        assert worker.address in str(error)
        for request in waiting:
            assert isinstance(ended(request.result), (DeviceLostError, ClosedError))
        assert engine.closed
        with pytest.raises(ClosedError, match=r"rpc://.*load the model again"):
            engine.generate("One day", SHORT)
    assert _works_here()


def test_the_log_says_once_that_a_worker_is_lost(worker: RunningWorker, caplog: pytest.LogCaptureFixture) -> None:
    with opened(worker) as engine:
        stream = engine.stream("One day", **ENDLESS)
        next(stream)
        worker.kill()
        assert isinstance(ended(lambda: list(stream)), (DeviceLostError, ClosedError))
        eventually(lambda: engine.closed)
    told = [record.getMessage() for record in caplog.records if "is gone" in record.getMessage()]
    assert [text.partition(":")[0] for text in told] == ["the engine closes"]


def test_killed_while_it_reads_a_prompt(worker: RunningWorker) -> None:
    with opened(worker, batch_size=32) as engine, worker.stopped():
        request = engine.submit(prompt(400), SHORT)
        worker.kill()
        assert isinstance(ended(request.result), (DeviceLostError, ClosedError))
    assert _works_here()


@pytest.mark.parametrize("at", [0.0, 0.5, 1.0])
def test_killed_while_the_model_is_loaded(worker: RunningWorker, at: float) -> None:
    def progress(done: int, total: int) -> None:
        if done >= at * total:
            worker.kill()

    error = ended(lambda: opened(worker, progress=progress, mmap=False))
    assert isinstance(error, DeviceError), error
    assert worker.address in str(error)
    assert _works_here()


def test_killed_while_a_session_is_saved(worker: RunningWorker, tmp_path: Path) -> None:
    with opened(worker) as engine, engine.session() as session:
        session.append("One day a fox")
        session.generate(SHORT)
        worker.kill()
        path = tmp_path / "session"
        assert isinstance(ended(lambda: session.save(path)), (DeviceLostError, ClosedError))
        assert not path.exists()
    assert _works_here()


def test_killed_while_nothing_is_asked(worker: RunningWorker) -> None:
    with opened(worker) as engine:
        worker.kill()
        assert isinstance(ended(lambda: engine.generate("One day", SHORT)), (DeviceLostError, ClosedError))
        assert isinstance(ended(lambda: engine.generate("One day", SHORT)), ClosedError)


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_a_lost_engine_leaves_nothing_here(worker: RunningWorker) -> None:
    """Threads, descriptors and mapped weights are given back without a call of `close`."""

    def held() -> tuple[int, int, bool]:
        own = Path("/proc/self")
        mapped = str(demo.path()) in (own / "maps").read_text()
        return len(list((own / "task").iterdir())), len(list((own / "fd").iterdir())), mapped

    assert _works_here()
    before = held()
    engine = opened(worker, gpu_layers=1)  # the others' weights are mapped here
    stream = engine.stream("One day", **ENDLESS)
    next(stream)
    assert held()[2]
    worker.kill()
    assert ended(lambda: list(stream)) is not None
    eventually(lambda: held() <= before and held()[2] == before[2])
    assert engine.closed


def test_an_idle_engine_notices(worker: RunningWorker) -> None:
    with opened(worker) as engine:
        assert engine.generate("One day", SHORT).tokens
        worker.kill()
        eventually(lambda: engine.closed)
        with pytest.raises(ClosedError, match=f"the worker at {worker.address} is gone"):
            engine.generate("One day", SHORT)


def test_another_worker_takes_over(worker: RunningWorker, shared: RunningWorker) -> None:
    with opened(worker) as engine:
        text = engine.generate("One day", SHORT).text
        worker.kill()
        assert ended(lambda: engine.generate("Two", SHORT)) is not None
    with opened(shared) as engine:
        assert engine.generate("One day", SHORT).text == text


def _works_here() -> bool:
    with Engine(demo.path(), gpu_layers=0, **OPTIONS) as engine:
        return bool(engine.generate("One day", SHORT).tokens)


# -- a worker that is there and does nothing: stopped, or at the other end of a line that is cut -----------------------


def test_closing_does_not_wait_for_a_stopped_worker(worker: RunningWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ollama_engine.runner.core.engine_thread.CLOSE_SECONDS", 0.1)
    engine = opened(worker)
    stream = engine.stream("One day", **ENDLESS)
    next(stream)
    with worker.stopped():
        waiting = engine.submit("Two foxes", **ENDLESS)
        assert ended(engine.close) is None
        for call in (waiting.result, lambda: list(stream)):
            assert isinstance(ended(call), (ClosedError, DeviceLostError))
    with opened(worker) as again:
        assert again.generate("One day", SHORT).tokens


@pytest.mark.parametrize("at", slow_except(["prompt", "answer", "load", "save"], "save"))
def test_a_stopped_worker_is_lost_in_the_end(
    at: str, worker: RunningWorker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After PATIENCE_SECONDS where it computes, after QUIET_SECONDS where it only has to read or write memory."""
    monkeypatch.setattr("ollama_engine.ml.workers.workers.QUIET_SECONDS", 5.0)
    monkeypatch.setattr("ollama_engine.ml.workers.workers.PATIENCE_SECONDS", 3600.0 if at in ("load", "save") else 5.0)
    with contextlib.ExitStack() as undo:
        stop = lambda: undo.enter_context(worker.stopped())  # noqa: E731
        if at == "load":
            error = ended(lambda: opened(worker, progress=lambda done, total: done < total or stop()))
        else:
            engine = undo.enter_context(opened(worker))
            session = undo.enter_context(engine.session())
            session.append("One day a fox")
            session.generate(SHORT)
            stream = None if at == "save" else engine.stream("One day", **ENDLESS)  # nothing computes beside a save
            if stream is not None and at == "answer":
                next(stream)
            stop()
            error = ended(lambda: session.save(tmp_path / "saved") if stream is None else list(stream))
        assert isinstance(error, (DeviceLostError, ClosedError)), error
        assert f"the worker at {worker.address} does not answer any more" in str(error)
    assert not (tmp_path / "saved").exists()


# -- a worker that is not there, or is busy ----------------------------------------------------------------------------


def test_no_worker() -> None:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))  # and does not listen
        address = f"rpc://127.0.0.1:{found.getsockname()[1]}"
        with pytest.raises(DeviceError, match=f"no worker answers at {address}: .*ollama-engine worker"):
            Engine(demo.path(), devices=[address], **OPTIONS)


@pytest.mark.parametrize("host", ["gpu..local", "x" * 64 + ".local"])
def test_a_name_that_cannot_be_asked_for(host: str) -> None:
    """Python raises UnicodeError for these, before anything is asked."""
    with pytest.raises(DeviceError, match=f"no worker answers at rpc://{host}:50052: .*ollama-engine worker"):
        Engine(demo.path(), devices=[f"rpc://{host}"], **OPTIONS)


def test_a_worker_serves_one_engine(shared: RunningWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(shared) as engine:
        with monkeypatch.context() as impatient:  # nobody else is: under load answers take longer
            impatient.setattr("ollama_engine.ml.workers.worker_client.ANSWER_SECONDS", 0.3)
            with pytest.raises(DeviceError, match="it is busy"):
                opened(shared)
        assert engine.generate("One day", SHORT).tokens
    with opened(shared) as engine:  # which it does when the first one is closed
        assert engine.generate("One day", SHORT).tokens


def test_memory_comes_back(shared: RunningWorker) -> None:
    """An Engine that cannot be loaded leaves nothing on the worker, and the next one gets it."""

    def stop(done: int, total: int) -> None:
        raise InterruptedError

    for _ in range(3):
        with pytest.raises(InterruptedError):
            opened(shared, progress=stop)
    with opened(shared) as engine:
        assert engine.generate("One day", SHORT).tokens


@pytest.mark.parametrize(
    ("devices", "told"),
    [
        (["rpc://"], "devices names a worker as rpc://HOST:PORT"),
        (["rpc://host:99999"], "devices names a worker as rpc://HOST:PORT"),
        (["CUDA7"], "devices names 'CUDA7', which does not exist; there are: none beside the CPU; leave it out"),
        ("rpc://host:50052", r'devices is a list of names, such as \["rpc://host:50052"\]'),
        ([3], "devices is a list of names"),
    ],
)
def test_names_that_mean_nothing(devices: Any, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        Engine(demo.path(), devices=devices, **OPTIONS)


def test_options_that_contradict(shared: RunningWorker) -> None:
    with pytest.raises(ConfigError, match=r"main_gpu 1 does not exist; devices: rpc://"):
        opened(shared, main_gpu=1)
    with pytest.raises(ConfigError, match="tensor_split has 2 shares for 1 devices"):
        opened(shared, tensor_split=(1, 1))
    with pytest.raises(ConfigError, match="does not exist; there are: rpc://"):
        Engine(demo.path(), devices=[f"{shared.address}/3"], **OPTIONS)
    with opened(shared, gpu_layers=0) as engine:
        assert [device.device for device in engine.memory.devices] == ["CPU"]


# -- the rest of an engine ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["llama-everything", "llama-window"])
def test_sessions_are_saved_restored_and_shifted(name: str, shared: RunningWorker, tmp_path: Path) -> None:
    """What a session holds on a worker goes into a file, and comes back here, and the other way round."""
    path = next(v for v in VARIANTS if str(v) == name).file(tmp_path)
    here: dict[str, Any] = {"num_ctx": 96, "threads": 1, "kv_cache_type": "f32", "gpu_layers": 0}
    there = {**here, "gpu_layers": None, "devices": [shared.address]}
    answers = {}
    for first, then in ((here, here), (there, here), (here, there), (there, there)):
        with Engine(path, **first) as engine, engine.session() as session:
            session.append(prompt(50))
            session.generate(SHORT)
            session.save(tmp_path / "saved", overwrite=True)
        with Engine(path, **then) as engine, engine.load_session(tmp_path / "saved") as session:
            answers[id(first), id(then)] = session.generate(
                SamplingParams(temperature=0, max_tokens=70), on_overflow="shift"
            ).tokens
    assert len(set(map(tuple, answers.values()))) == 1


def test_forks_formats_and_many_callers(shared: RunningWorker) -> None:
    with opened(shared, parallel=4) as engine, Engine(demo.path(), gpu_layers=0, **{**OPTIONS, "parallel": 4}) as twin:
        for each in (engine, twin):
            found = each.generate("A number:", SamplingParams(max_tokens=40, seed=1), format={"type": "integer"})
            assert isinstance(found.parsed, int)
        prompts = [f"One day {word}" for word in ("a fox", "a bear", "Lily", "Tom", "the sun", "two cats")]
        assert [len(c.tokens) for c in engine.generate(prompts, SHORT)] == [4] * 6
        request = engine.submit("Once upon a time", **ENDLESS)
        for _ in range(5):
            next(iter(request))
        assert engine.fork(request, SHORT).result().tokens
        request.cancel()
        assert engine.embed("a fox").shape == twin.embed("a fox").shape


def test_a_full_device(shared: RunningWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    """What does not fit stays here; layers that are asked for and do not fit are refused before anything is sent."""
    monkeypatch.setattr("ollama_engine.ml.workers.worker_client.WorkerClient.memory", lambda *_: (1 << 20, 1 << 20))
    with pytest.raises(NoMemoryError, match=re.escape(shared.address)):
        opened(shared, gpu_layers=100)
    with opened(shared) as engine:
        assert engine.generate("One day", SHORT).tokens


def taken(engine: Engine) -> int:
    """Bytes that an engine holds on its only worker, which lends a known amount."""
    ((free, total),) = engine._loaded.backend.workers[0].memory()
    return total - free


def lying(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have workers say that they lend 1 GiB, as where something else takes their memory after they are asked."""
    monkeypatch.setattr("ollama_engine.ml.workers.worker_client.WorkerClient.memory", lambda *_: (1 << 30, 1 << 30))


def test_a_worker_lends_what_it_was_told(tmp_path: Path) -> None:
    """As much of the model goes there as fits; more than fits is refused."""
    with running_worker(tmp_path, 12 << 20) as worker:
        with opened(worker) as engine:
            assert engine.memory.devices[0].device == worker.address
            assert 0 < taken(engine) <= 12 << 20
            assert engine.memory.placement is not None
            assert 0 < engine.memory.placement.gpu_layers < 5
            assert engine.generate("One day", SHORT).tokens
        with pytest.raises(NoMemoryError, match=re.escape(worker.address)) as told:
            opened(worker, gpu_layers=5)
        assert f"{worker.address} " in str(told.value.report)
        with opened(worker, gpu_layers=1) as engine:  # nothing is left there of what went before
            assert engine.generate("One day", SHORT).tokens


def test_a_device_that_fills(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever does not get its memory, weights, cache or graphs, is told when the model is loaded, and not later.

    What a text to embed needs beyond that is told to who asks, and the engine goes on.
    """
    lying(monkeypatch)
    options: dict[str, Any] = {"num_ctx": 1024, "batch_size": 64, "gpu_layers": 5}
    with running_worker(tmp_path, 64 << 20) as worker, opened(worker, **options) as engine:
        tokens, needed = engine.generate("One day", SHORT).tokens, taken(engine)
        weights, cache = engine.memory.devices[0].weights, engine.memory.devices[0].cache
    for lent in (weights // 2, weights + cache // 2, weights + cache + 1000, needed - 1):
        with running_worker(tmp_path, lent) as worker:
            with pytest.raises(NoMemoryError, match="does not fit") as told:
                opened(worker, **options)
            assert worker.address in str(told.value.report)
            assert worker.process.poll() is None
    with running_worker(tmp_path, needed) as worker, opened(worker, **options) as engine:
        for _ in range(2):
            with pytest.raises(NoMemoryError):
                engine.embed("a fox went to the forest " * 100)
            assert engine.generate("One day", SHORT).tokens == tokens
    assert _works_here()


def test_heads_that_the_caches_type_cannot_hold(shared: RunningWorker, tmp_path: Path) -> None:
    path = write_tiny_llama(tmp_path / "tiny.gguf").path
    with pytest.raises(ConfigError, match="blocks of 32"):
        Engine(path, devices=[shared.address], kv_cache_type="q8_0", **OPTIONS)


def test_reports_name_the_worker(shared: RunningWorker) -> None:
    with opened(shared) as engine:
        text = str(engine.memory)
        plan = Engine.plan_memory
    assert shared.address in text
    assert shared.address in str(plan(demo.path(), devices=[shared.address], **OPTIONS))
