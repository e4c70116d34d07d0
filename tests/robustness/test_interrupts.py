"""Interrupts: what a signal handler raises, anywhere in a call, ends that call and nothing else."""

from __future__ import annotations

import _imp
import gc
import itertools
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest

from ollama_engine import Engine, SamplingParams, Session
from ollama_engine.chat.template import ChatTemplate
from tests.robustness.test_faults import check_nothing_left
from tests.support.suite import scaled
from tests.support.tiny import write_tiny_llama
from tests.support.tiny_answers import NO_END, greedy

PATIENCE = 20
"""Seconds after which something is taken to go on."""
PROMPT = [5, 77, 200, 31, 8]
NEW = [1, 2, 3]
ENDLESS = SamplingParams(temperature=0, logit_bias=NO_END)
QUESTION = [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]
TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"
LONG_TEMPLATE = "{% for number in range(9999) %}x{% endfor %}"
SHIFT: Any = {"on_overflow": "shift"}
POINTS = 600
"""Where an answer without end is interrupted: before so many calls have returned."""
ROUNDS = 150


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_tiny_llama(tmp_path_factory.mktemp("tiny") / "tiny.gguf", n_layer=1, seed=4).path


@pytest.fixture(autouse=True)
def no_callbacks_of_others() -> Iterator[None]:
    """Test tools time the collector in a callback; an interrupt in there would be lost, and reported."""
    theirs = gc.callbacks[:]
    gc.callbacks.clear()
    yield
    gc.callbacks.extend(theirs)
    # An interrupt in an import may leave it taken, and nobody else in this process imports any more.
    assert not _imp.lock_held()


@pytest.fixture
def engine(path: str) -> Iterator[Engine]:
    with Engine(path, num_ctx=256, parallel=2, threads=1, kv_cache_type="f32", verify=True) as made:
        expected = made.generate(PROMPT, greedy(6), cache=False).tokens
        yield made
        check_no_session_left(made)
        check_nothing_left(made)
        assert ChatTemplate(LONG_TEMPLATE).render(QUESTION)  # nobody's cancelled request ends it
        assert made.generate(PROMPT, greedy(6), cache=False).tokens == expected


def check_no_session_left(engine: Engine) -> None:
    engine.generate([1], greedy(0))  # after all that was asked for before
    prefix_cache = engine._core.cache_manager.prefix_cache
    assert not any(prefix_cache.pinned(sequence) for sequence in range(len(prefix_cache)))


def wait_until_idle(engine: Engine) -> None:
    deadline = time.monotonic() + PATIENCE
    while engine._engine_thread.coming or engine.slots():  # in this order: what comes is in a slot then
        assert time.monotonic() < deadline, engine.slots()
        time.sleep(0)


# -- at every point of a call ------------------------------------------------------------------------------------------


def interrupted_at(call: Callable[[], object], point: int) -> KeyboardInterrupt | None:
    """What ended the call where signals are looked at for that time: as a function begins, or one in C has returned.

    None where the call ended before. The traceback holds the frames that it went through, as the prompt of the
    interpreter does.
    """
    left = point

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal left
        if event == "c_return" and getattr(argument, "__name__", "") == "__enter__":
            return  # from Python 3.14 on, an interrupt there leaves a lock taken, in any program
        if event in ("call", "c_return") and frame.f_code.co_filename != __file__:
            left -= 1
            if left < 0:
                sys.setprofile(None)
                raise KeyboardInterrupt

    try:
        sys.setprofile(count)
        call()
        sys.setprofile(None)
    except KeyboardInterrupt as error:
        return error
    return None


@pytest.mark.parametrize("way", ["generate", "list", "stream", "submit", "fork", "logits", "score", "chat"])
def test_an_interrupt_anywhere_cancels_a_request(engine: Engine, way: str) -> None:
    other = engine.submit(PROMPT, greedy(3))
    other.result()
    engine.score(PROMPT, [1])  # which imports what scoring needs
    engine.chat(QUESTION, greedy(1), template=TEMPLATE)
    made: list[Any] = []
    calls: dict[str, Callable[[], object]] = {
        "generate": lambda: engine.generate(PROMPT, ENDLESS, **SHIFT),
        "list": lambda: engine.generate([PROMPT, NEW], ENDLESS, n=2, **SHIFT),
        "stream": lambda: engine.stream(PROMPT, ENDLESS, **SHIFT),
        "submit": lambda: made.append(engine.submit(PROMPT, ENDLESS, **SHIFT)),
        "fork": lambda: made.append(engine.fork(other, ENDLESS, **SHIFT)),
        "logits": lambda: engine.logits(PROMPT * 4),
        "score": lambda: engine.score(PROMPT * 4, [[1, 2], [3, 4]]),
        "chat": lambda: engine.chat(QUESTION, ENDLESS, template=TEMPLATE, drop_messages=True, **SHIFT),
    }
    for point in range(POINTS):
        error = interrupted_at(calls[way], point)
        if error is None:
            break
        wait_until_idle(engine)
    assert point > 20
    assert (error is None) == (way not in ("generate", "list", "chat"))
    for request in made:
        request.cancel()


def test_an_interrupted_result_hangs_nobody(engine: Engine) -> None:
    """It cancels the request, and whoever asks again gets all of it, or hears that it was cancelled."""
    for point in range(POINTS):
        request = engine.submit(PROMPT, greedy(6))
        error = interrupted_at(request.result, point)
        outcomes = []
        for _ in range(2):
            try:
                outcomes.append(request.result(PATIENCE).tokens)
            except RuntimeError as ended:
                outcomes.append(str(ended))
        assert outcomes[0] == outcomes[1]
        assert len(outcomes[0]) == 6 or "cancelled" in outcomes[0]
        assert next(request, None) is None
        if error is None:
            break


# Of a file that `open` has returned and nobody has got.
@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
@pytest.mark.parametrize("way", ["append", "generate", "stream", "rewind", "fork", "save", "close"])
def test_an_interrupt_anywhere_leaves_a_session_before_or_after_the_call(
    engine: Engine, tmp_path: Any, way: str
) -> None:
    session = engine.session()
    session.append(PROMPT)
    session.save(tmp_path / "saved")  # which looks at the model's file once
    answer = session.fork().generate(greedy(4)).tokens
    after = {"append": (*PROMPT, *NEW), "generate": (*PROMPT, *answer), "rewind": tuple(PROMPT[:-2])}
    calls: dict[str, Callable[[Session], object]] = {
        "append": lambda fork: fork.append(NEW),
        "generate": lambda fork: fork.generate(greedy(4)),
        "stream": lambda fork: fork.stream(greedy(4)),
        "rewind": lambda fork: fork.rewind(2),
        "fork": lambda fork: fork.fork(),
        "save": lambda fork: fork.save(tmp_path / "saved", overwrite=True),
        "close": lambda fork: fork.close(),
    }
    for point in itertools.count(step=scaled(1, quick=3)):
        with session.fork() as fork:
            error = interrupted_at(lambda: calls[way](fork), point)
            if way != "close":
                found = fork.tokens
                assert found in (tuple(PROMPT), after.get(way))
                fork.append(NEW)
                assert fork.tokens == (*found, *NEW)
        if error is None:
            break
        del error
    assert point > 3
    session.close()


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
def test_an_interrupted_load_leaves_nothing(engine: Engine, tmp_path: Any) -> None:
    with engine.session() as session:
        session.append(PROMPT)
        session.save(tmp_path / "saved")
    engine.load_session(tmp_path / "saved").close()  # which imports
    for point in itertools.count():
        error = interrupted_at(lambda: engine.load_session(tmp_path / "saved"), point)
        check_no_session_left(engine)
        if error is None:
            break
    assert point > 100


# -- at any moment -----------------------------------------------------------------------------------------------------


def interrupted_after(call: Callable[[], object], seconds: float) -> KeyboardInterrupt | None:
    """What came while it ran, or right after."""
    armed = True

    def interrupt(number: int, frame: FrameType | None) -> None:
        if armed:  # the system may hand the signal to a thread that does not run yet, and Python hears of it late
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        try:
            signal.setitimer(signal.ITIMER_REAL, seconds)
            call()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            armed = False
    except KeyboardInterrupt as error:
        return error
    finally:
        signal.signal(signal.SIGALRM, before)
    return None


def use(session: Session, what: int) -> None:
    if what == 0:
        session.append(NEW)
    elif what == 1:
        session.generate(greedy(6))
    elif what == 2:
        session.rewind(max(0, min(5, len(session) - 5)))
    elif what == 3:
        session.fork()
    elif what == 4:
        with session.fork() as other:
            other.append([9, 9])
            other.generate(greedy(2))
    else:
        for _, _ in zip(range(3), session.stream(greedy(20)), strict=False):
            pass


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="this system has no interval timers")
def test_a_storm_of_interrupts_into_sessions(engine: Engine) -> None:
    dice, hits, session = random.Random(11), 0, engine.session()
    session.append(PROMPT)
    for _ in range(ROUNDS):
        delay = dice.choice([1e-5, 1e-4, 1e-3, 4e-3]) * dice.uniform(0.02, 1)
        what = dice.randrange(6)
        hits += interrupted_after(lambda: use(session, what), delay) is not None  # noqa: B023 (called at once)
        if len(session) > 200:
            session.close()
            session = engine.session()
            session.append(PROMPT)
    assert hits > ROUNDS / 10
    tokens = session.tokens
    assert session.generate(greedy(6)).tokens == engine.generate(list(tokens), greedy(6), cache=False).tokens
    session.close()
