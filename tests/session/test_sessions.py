"""Sessions: what they hold, what is computed of it, going back and apart, and what happens at every edge."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from ollama_engine import Completion, Engine, SamplingParams, Session, demo
from ollama_engine.errors import (
    ClosedError,
    ConfigError,
    ContextOverflowError,
    DeadlineError,
    EngineBusyError,
    SamplingError,
    TokenizerError,
)
from tests.support.tiny import write_tiny_llama
from tests.support.tiny_answers import N_VOCAB, NO_END, greedy
from tests.support.waiting import eventually

FIRST, SECOND = [5, 77, 200, 31, 8, 19, 4], [60, 61, 7]
NUM_CTX = 128
PATIENCE = 50


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_tiny_llama(tmp_path_factory.mktemp("tiny") / "tiny.gguf", n_layer=2, seed=4).path


@pytest.fixture
def engine(path: str) -> Iterator[Engine]:
    with open_engine(path) as made:
        yield made


def open_engine(path: str, **options: Any) -> Engine:
    """A pool of 256 cells, which is what cells are rounded up to."""
    return Engine(path, **{"num_ctx": NUM_CTX, "parallel": 2, "threads": 1, "verify": True, **options})


def lone(engine: Engine, ids: tuple[int, ...] | list[int], n: int = 8) -> tuple[int, ...]:
    """What these tokens give without any help of the cache."""
    return engine.generate(list(ids), greedy(n), cache=False).tokens


def pinned(engine: Engine) -> int:
    """Cache sequences that sessions hold, after all that was queued before is done."""
    engine.generate([1], greedy(0))
    prefix_cache = engine._core.cache_manager.prefix_cache
    return sum(prefix_cache.pinned(sequence) for sequence in range(len(prefix_cache)))


# -- growing -----------------------------------------------------------------------------------------------------------


def test_only_what_is_new_is_computed(engine: Engine) -> None:
    session = engine.session()
    session.append(FIRST)
    assert session.tokens == tuple(FIRST)
    before = engine.metrics.prompt_tokens
    first = session.generate(greedy())
    assert first.tokens == lone(engine, FIRST)
    assert first.usage.cached_tokens == len(FIRST) - 1
    assert session.tokens == (*FIRST, *first.tokens)
    session.append(SECOND)
    second = session.generate(greedy())
    assert second.tokens == lone(engine, [*FIRST, *first.tokens, *SECOND])
    assert second.usage.cached_tokens == len(FIRST) + len(first.tokens) + len(SECOND) - 1
    computed_by_others = len(FIRST) + len([*FIRST, *first.tokens, *SECOND])
    # One for each answer, the last token of the first answer, and the new ones.
    assert engine.metrics.prompt_tokens - before - computed_by_others == 1 + 1 + len(SECOND) + 1


def test_the_first_text_only_gets_the_begin_token(engine: Engine) -> None:
    session = engine.session()
    session.append("Hello")
    session.append(", world")
    assert session.tokens == (*engine.tokenize("Hello"), *engine.tokenize(", world", add_special=False))
    assert session.text == "Hello, world"
    session.rewind(len(session))
    session.append("Bye")
    assert session.tokens == tuple(engine.tokenize("Bye"))


def test_an_empty_session_has_nothing_to_answer(engine: Engine) -> None:
    session = engine.session()
    with pytest.raises(ConfigError, match="append"):
        session.generate(greedy())
    session.append([])
    assert (len(session), bool(session), session.tokens, session.text) == (0, True, (), "")


def test_two_sessions_that_begin_alike_share_what_is_computed(engine: Engine) -> None:
    a, b = engine.session(), engine.session()
    a.append(FIRST * 5)
    used = engine.metrics.cells.used
    b.append(FIRST * 5)
    assert engine.metrics.cells.used == used + 1
    assert b.generate(greedy()).tokens == a.generate(greedy()).tokens == lone(engine, FIRST * 5)


@pytest.mark.parametrize("how", ["all", "close", "drop", "with"])
def test_a_session_keeps_what_was_taken_of_a_stream(engine: Engine, how: str) -> None:
    session = engine.session()
    session.append(FIRST)
    stream = session.stream(greedy(40))
    taken = [token for _ in range(3) for token in next(stream).tokens]
    if how == "all":
        taken += [token for chunk in stream for token in chunk.tokens]
    elif how == "close":
        stream.close()
    elif how == "with":
        with stream:
            pass
    del stream
    assert session.tokens == (*FIRST, *taken)
    assert session.generate(greedy()).tokens == lone(engine, [*FIRST, *taken])


@pytest.mark.parametrize("fails", ["banned", "late", "bad"])
def test_what_fails_leaves_the_session_as_it_was(engine: Engine, fails: str) -> None:
    session = engine.session()
    session.append(FIRST)
    if fails == "banned":
        with pytest.raises(SamplingError):
            session.generate(SamplingParams(logit_bias=dict.fromkeys(range(N_VOCAB), float("-inf"))))
    elif fails == "late":
        with pytest.raises(DeadlineError):
            session.generate(greedy(120), timeout=1e-9)
    else:
        with pytest.raises(TokenizerError):
            session.append([N_VOCAB])
    assert session.tokens == tuple(FIRST)
    assert session.generate(greedy()).tokens == lone(engine, FIRST)


def test_options_that_a_session_cannot_take(engine: Engine) -> None:
    session = engine.session()
    with pytest.raises(ConfigError, match="cache=False"):
        session.append(FIRST, cache=False)
    with pytest.raises(TypeError, match="takes no 'n'"):
        session.append(FIRST, n=2)  # type: ignore[call-arg]
    assert session.tokens == ()


@pytest.mark.parametrize(
    "options",
    [{"format": "json"}, {"reasoning_budget": 5}, {"reasoning_budget": 0}, {"logits_processors": [print]}],
    ids=lambda options: next(iter(options)),
)
def test_what_is_about_an_answer_is_refused_where_none_is_asked_for(engine: Engine, options: Any) -> None:
    session = engine.session()
    with pytest.raises(ConfigError, match=f"no answer: it takes no {next(iter(options))}"):
        session.append(FIRST, **options)
    with pytest.raises(ConfigError, match=f"no answer: it takes no {next(iter(options))}"):
        asyncio.run(session.aappend(FIRST, **options))
    session.append(FIRST, format=None, reasoning_budget=None, logits_processors=[])
    assert session.tokens == tuple(FIRST)


# -- going back, and apart ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [0, 1, 4, 7, 15])
def test_a_session_goes_back(engine: Engine, n: int) -> None:
    session = engine.session()
    session.append(FIRST)
    session.generate(greedy())
    before, used = session.tokens, engine.metrics.cells.used
    session.rewind(n)
    assert session.tokens == before[: len(before) - n]
    assert engine.metrics.cells.used == used - max(0, n - 1)  # the last one was not computed yet
    if session.tokens:
        assert session.generate(greedy()).tokens == lone(engine, before[: len(before) - n])


@pytest.mark.parametrize("n", [-1, 8, True, 1.0])
def test_a_session_goes_no_further_back_than_its_beginning(engine: Engine, n: Any) -> None:
    session = engine.session()
    session.append(FIRST)
    with pytest.raises(ConfigError, match=r"n is a whole number from 0 to 7|has only 7 tokens"):
        session.rewind(n)
    assert len(session) == 7


def test_an_empty_session_says_that_it_has_nothing(engine: Engine) -> None:
    session = engine.session()
    with pytest.raises(ConfigError, match="has only 0 tokens"):
        session.rewind(5)
    session.append([1])
    assert repr(session) == "Session(1 token)"


def test_forks_share_cells_and_go_their_own_ways(engine: Engine) -> None:
    session = engine.session()
    session.append(FIRST * 5)
    used = engine.metrics.cells.used
    forks = [session.fork() for _ in range(3)]
    assert engine.metrics.cells.used == engine.metrics.cells.shared == used
    for i, fork in enumerate(forks):
        fork.append([100 + i])
    session.close()
    for i, fork in enumerate(forks):
        found = fork.generate(greedy())
        assert found.tokens == lone(engine, [*FIRST * 5, 100 + i])
        assert found.usage.cached_tokens == len(FIRST) * 5
    assert engine.session().fork().tokens == ()


# -- num_ctx -----------------------------------------------------------------------------------------------------------


def test_a_full_session_says_so_and_stays(engine: Engine) -> None:
    session = engine.session()
    session.append([9] * 120)
    with pytest.raises(ContextOverflowError, match="130 tokens, but num_ctx is 128"):
        session.append([9] * 10)
    assert len(session) == 120
    assert session.generate(greedy(50)).finish_reason == "length"
    assert len(session) == NUM_CTX
    for call in (session.generate, session.stream):
        with pytest.raises(ContextOverflowError, match="no place is left for an answer; append less or rewind"):
            call(greedy(50))
    assert session.generate(greedy(0)).tokens == ()
    assert len(session) == NUM_CTX
    found = session.generate(greedy(4), on_overflow="shift")
    assert (len(found.tokens), found.usage.shifted_tokens) == (4, NUM_CTX // 2)


def test_a_session_that_truncates_keeps_its_beginning_and_the_newest(engine: Engine) -> None:
    session, ids = engine.session(), list(range(200))
    session.append(ids[:100])
    session.append(ids[100:], on_overflow="truncate", num_keep=10)
    assert session.tokens == (*range(10), *range(82, 200))
    assert session.generate(greedy(0)).usage.cached_tokens == NUM_CTX - 1


def test_a_session_that_shifts_holds_its_context(engine: Engine) -> None:
    session = engine.session()
    session.append(FIRST * 15)
    found = session.generate(greedy(60), on_overflow="shift", num_keep=4)
    assert found.usage.shifted_tokens > 0
    assert len(session) == 105 + 60 - found.usage.shifted_tokens
    assert session.tokens == (*FIRST[:4], *[*FIRST * 15, *found.tokens][4 + found.usage.shifted_tokens :])
    # It goes on with what was shifted; another one that begins alike does not.
    assert session.generate(greedy(1)).usage.cached_tokens == 105 + 60 - found.usage.shifted_tokens - 1
    assert engine.generate(list(session.tokens), greedy(1)).usage.cached_tokens == 4


# -- room --------------------------------------------------------------------------------------------------------------


def test_sessions_that_fill_the_cache_are_named_to_those_who_find_no_room(engine: Engine) -> None:
    sessions = [engine.session() for _ in range(2)]
    for i, session in enumerate(sessions):
        session.append([50 + i] * 120)
    for _ in range(2):
        with pytest.raises(ContextOverflowError, match="sessions hold"):
            engine.generate([3] * 100, greedy())
    with pytest.raises(ContextOverflowError, match="sessions hold"):
        engine.session().append([3] * 20)
    assert sessions[0].generate(greedy(4)).tokens == lone_elsewhere(engine, [50] * 120, 4)
    sessions[1].close()
    assert engine.generate([3] * 100, greedy()).finish_reason == "length"
    assert sessions[0].generate(greedy(1)).usage.cached_tokens == 123


def lone_elsewhere(engine: Engine, ids: list[int], n: int) -> tuple[int, ...]:
    with open_engine(engine.info.path) as other:
        return lone(other, ids, n)


def test_many_requests_beside_sessions_end_or_say_why(engine: Engine) -> None:
    session = engine.session()
    session.append([50] * 125)
    expected = {n: lone_elsewhere(engine, [n] * n, 6) for n in (20, 60, 110)}

    def ask(n: int) -> bool:
        try:
            return engine.generate([n] * n, greedy(6), timeout=PATIENCE).tokens == expected[n]
        except ContextOverflowError as error:
            return "sessions hold" in str(error)

    with ThreadPoolExecutor(12) as pool:
        assert all(pool.map(ask, [20, 60, 110] * 8, timeout=PATIENCE))
    assert session.generate(greedy(3)).tokens == lone_elsewhere(engine, [50] * 125, 3)


def test_more_sessions_than_sequences(engine: Engine) -> None:
    engine._core.cache_manager.prefix_cache._limit = 64
    first = engine.session()
    first.append(FIRST)
    others = [first.fork() for _ in range(63)]
    with pytest.raises(ContextOverflowError, match="sessions"):
        first.fork()
    with pytest.raises(ContextOverflowError, match="sessions hold all sequences"):
        engine.generate([1, 2], greedy())
    with pytest.raises(ContextOverflowError, match="sessions hold all sequences"):
        engine.session().append(SECOND)
    assert len(others[40].generate(greedy()).tokens) == 8
    others.pop().close()
    assert others[40].generate(greedy()).tokens
    assert engine.generate(FIRST, greedy()).tokens


def test_as_many_sessions_as_are_asked_for(engine: Engine) -> None:
    """Open at once, most of them holding nothing; forks share their cells."""
    empty = [engine.session() for _ in range(10_000)]
    first = empty[17]
    first.append(FIRST)
    forks = [first.fork() for _ in range(500)]
    expected = lone(engine, FIRST)
    assert engine.generate(FIRST, greedy()).tokens == expected
    assert forks[400].generate(greedy()).tokens == expected
    forks[0].append(SECOND)
    assert forks[0].generate(greedy()).tokens == lone(engine, [*FIRST, *SECOND])
    assert pinned(engine) == 501
    assert engine.metrics.cells.used < 100
    for session in (*empty, *forks):
        session.close()
    assert pinned(engine) == 0


def resident_mib() -> float:
    """Memory of this process that lies in RAM."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="memory is read as Linux shows it")
def test_ten_thousand_sessions() -> None:
    """Most hold nothing, many the same beginning, some a text of their own: requests go on as if they were not there.

    Bounds are some ten times what it takes.
    """
    story = "Once upon a time there was a little fox who lived in a big wood."
    ask = SamplingParams(temperature=0, max_tokens=8)
    with Engine(str(demo.path()), num_ctx=1024, parallel=4, threads=1) as engine:
        prefix_cache = engine._core.cache_manager.prefix_cache
        answer = engine.generate(story, ask).text
        began, before = time.process_time(), resident_mib()
        sessions = [engine.session() for _ in range(10_000)]
        assert len(prefix_cache) < 100, "what holds nothing takes no cache sequence"
        sessions[0].append(story)
        forks = [sessions[0].fork() for _ in range(10_000)]
        assert len(prefix_cache) > 10_000
        assert engine.metrics.cells.used < 200, "they share their cells"
        for number, session in enumerate(sessions[1:100]):
            session.append([number, 5, 9])
        assert resident_mib() - before < 200
        assert time.process_time() - began < 40
        began = time.process_time()
        assert engine.generate(story, ask).text == answer
        for session in forks[::1000]:
            assert session.generate(ask).text == answer
        assert time.process_time() - began < 10
        assert len(sessions[50].generate(ask).tokens) > 0
        engine._core.check()
        for session in (*forks, *sessions):
            session.close()
        assert engine.generate(story, ask).text == answer
        assert len(prefix_cache.evict_candidates()) > 0
        numbers = len(prefix_cache)
        for _ in range(200):
            engine.generate(story, SamplingParams(max_tokens=1))
        assert len(prefix_cache) == numbers, "sequences that were given back are used again"
        assert len(prefix_cache.evict_candidates()) < 100


# -- threads, asyncio and endings --------------------------------------------------------------------------------------


def test_a_session_does_one_thing_at_a_time(engine: Engine) -> None:
    session = engine.session()
    session.append(FIRST)
    stream = session.stream(greedy(100))
    next(stream)
    calls: list[Callable[[], object]] = [
        lambda: session.tokens, lambda: session.append([1]), lambda: session.generate(greedy()),
        lambda: session.stream(greedy()), session.fork, lambda: session.rewind(1),
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(EngineBusyError, match="still coming"):
            call()
    stream.close()
    assert len(session) == len(FIRST) + 1

    with session._turn, pytest.raises(EngineBusyError, match="another call"):
        session.generate(greedy())


def test_threads_that_share_a_session_are_served_or_refused(engine: Engine) -> None:
    session = engine.session()
    session.append(FIRST)

    def use(token: int) -> int | None:
        try:
            session.append([token])
        except EngineBusyError:
            return None
        return token

    with ThreadPoolExecutor(8) as pool:
        served = [token for token in pool.map(use, range(100, 180), timeout=PATIENCE) if token is not None]
    assert sorted(session.tokens[len(FIRST) :]) == served
    assert session.generate(greedy()).tokens == lone(engine, session.tokens[:-8])


def test_asyncio(engine: Engine) -> None:
    async def work() -> tuple[Completion, Completion, list[int]]:
        session, other = engine.session(), engine.session()
        await asyncio.gather(session.aappend(FIRST), other.aappend(SECOND))
        first, second = await asyncio.gather(session.agenerate(greedy()), other.agenerate(greedy()))
        taken: list[int] = []
        async with session.astream(greedy(50)) as stream:
            async for chunk in stream:
                taken += chunk.tokens
                if len(taken) >= 3:
                    break
        assert session.tokens == (*FIRST, *first.tokens, *taken)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(other.agenerate(greedy(120)), 1e-6)
        assert other.tokens == (*SECOND, *second.tokens)
        return first, second, taken

    first, second, taken = asyncio.run(asyncio.wait_for(work(), PATIENCE))
    assert (first.tokens, second.tokens) == (lone(engine, FIRST), lone(engine, SECOND))
    assert tuple(taken) == lone(engine, [*FIRST, *first.tokens], len(taken))


def everything(session: Session) -> list[Callable[[], object]]:
    return [
        lambda: session.tokens, lambda: session.text, lambda: len(session), lambda: session.append([1]),
        lambda: session.generate(greedy()), lambda: session.stream(greedy()), session.fork,
        lambda: session.rewind(0), lambda: session.save("never"), session.__enter__,
    ]  # fmt: skip


def test_a_closed_session_refuses_everything(engine: Engine) -> None:
    with engine.session() as session:
        session.append(FIRST)
        assert pinned(engine) == 1
    session.close()
    for call in everything(session):
        with pytest.raises(ClosedError, match="Session is closed"):
            call()
    assert repr(session) == "Session(closed)"
    assert pinned(engine) == 0
    assert engine.generate(FIRST, greedy(1)).usage.cached_tokens == len(FIRST) - 1


def test_sessions_of_a_closed_engine(path: str) -> None:
    with open_engine(path) as engine:
        session = engine.session()
        session.append(FIRST)
    for call in everything(session)[:-1]:
        with pytest.raises(ClosedError, match="Engine is closed"):
            call()
    session.close()
    with pytest.raises(ClosedError):
        engine.session()


@pytest.mark.parametrize("what", ["session", "engine"])
def test_closing_ends_an_answer(path: str, what: str) -> None:
    with open_engine(path, num_ctx=512) as engine, ThreadPoolExecutor(1) as pool:
        session = engine.session()
        session.append(FIRST)
        answer = pool.submit(session.generate, SamplingParams(logit_bias=NO_END), on_overflow="shift")
        threading.Event().wait(0.05)
        (session if what == "session" else engine).close()
        with pytest.raises(ClosedError):
            answer.result(PATIENCE)


def test_a_dropped_session_lets_go(engine: Engine) -> None:
    session = engine.session()
    session.append(FIRST)
    gone, stream = weakref.ref(session), session.stream(greedy(20))
    next(stream)
    del session
    gc.collect()
    assert gone() is None
    assert len(list(stream)) == 19  # what is still read goes on
    assert pinned(engine) == 0


def test_an_engine_goes_when_its_sessions_have_gone(path: str) -> None:
    engine = open_engine(path)
    session = engine.session()
    session.append(FIRST)
    session.fork().rewind(2)
    gone = weakref.ref(engine)
    del engine
    assert session.generate(greedy()).tokens
    del session
    gc.collect()
    assert gone() is None


def test_a_shifting_answer_that_is_cut_off_leaves_the_prompt(path: str) -> None:
    """What of the answer nobody took goes; what a shift has discarded of it cannot go again."""
    prompt = list(range(1, 31))
    with open_engine(path, num_ctx=64) as engine, engine.session() as session:
        session.append(prompt)
        stream = session.stream(greedy(200), on_overflow="shift", num_keep=25)
        next(stream)
        eventually(lambda: engine.metrics.completion_tokens >= 120)
        stream.close()
        assert session.tokens[:25] == tuple(prompt[:25])
        assert len(session.generate(greedy(4)).tokens) == 4
