"""Long texts: the same ids as in pieces and as the reference's, other threads run meanwhile, and callers can end it."""

from __future__ import annotations

import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ollama_engine.chat.provenance import Traced
from ollama_engine.errors import NoMemoryError
from ollama_engine.tokenizer import Tokenizer, bpe, from_metadata, pretokenizer, wordpiece
from ollama_engine.tokenizer._texts import join_texts
from ollama_engine.tokenizer.pretokenizer import PreTokenizer
from ollama_engine.tokenizer.pretokenizer_table import find_spec, pretokenizer_names
from ollama_engine.tokenizer.vocab import read_vocabulary
from ollama_engine.tokenizer.wordpiece import WordPieceModel
from tests.support.suite import scaled, slow_except
from tests.support.waiting import join
from tests.tokenizer.corpus import prose, wild_texts
from tests.tokenizer.vocabs import CONTROL, NORMAL, bpe_metadata, hf_bpe, spm_metadata

Vocab = tuple[list[str], list[str]]
SPECS = list({find_spec(name).stages: name for name in pretokenizer_names()}.values())


class EnoughError(Exception):
    """Raised by a checkpoint here."""


@pytest.fixture(scope="module")
def story(bpe_vocab: Vocab) -> Tokenizer:
    return from_metadata(bpe_metadata(*bpe_vocab, pre="llama-bpe", special=[("<|end|>", CONTROL)]))


def unigram(spm_model: Any) -> Tokenizer:
    return from_metadata(spm_metadata(spm_model) | {"tokenizer.ggml.model": "t5"})


@pytest.fixture
def tokenizers(story: Tokenizer, spm_model: Any) -> dict[str, Tokenizer]:
    return {"bpe": story, "spm": from_metadata(spm_metadata(spm_model)), "unigram": unigram(spm_model)}


# -- texts put together ------------------------------------------------------------------------------------------------


@given(st.lists(st.text(st.sampled_from("aé字😀\0\ud800"), max_size=5)), st.integers(1, 3000))
def test_texts_are_joined_as_python_joins_them(texts: list[str], times: int) -> None:
    for whole in (texts, [text * times for text in texts]):
        joined = join_texts(whole)
        assert joined == "".join(whole)
        assert hash(joined) == hash("".join(whole)), "its characters have the bytes that they need"
    assert type(join_texts([Traced.whole("a"), "b"])) is str
    with pytest.raises(TypeError, match="expected str, got bytes"):
        join_texts(["a", b"b"])  # type: ignore[list-item]


def test_other_threads_run_while_texts_are_joined() -> None:
    """Between its calls no Python code runs, at which the lock could be given up."""
    turns: list[None] = []
    ended = threading.Event()

    def turn() -> None:
        while not ended.is_set():
            turns.append(None)

    other, before = threading.Thread(target=turn), sys.getswitchinterval()
    other.start()
    sys.setswitchinterval(1e-5)
    try:
        texts = ["a" * (1 << 20)] * 30 + ["😀"]
        count = partial(len, turns)
        begun, _, ended_at = map(partial.__call__, (count, partial(join_texts, texts), count))
    finally:
        sys.setswitchinterval(before)
        ended.set()
        join(other)
    assert ended_at > begun


# -- the same ids ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", slow_except(SPECS, *SPECS[::6]))
def test_pieces_that_are_found_as_they_are_taken(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pre = PreTokenizer(find_spec(name))
    texts = [*wild_texts(3)[::3], "a\udc80 \udc81b\udcff\n", prose(3_000)]
    expected = [pre.split(text) for text in texts]
    monkeypatch.setattr(pretokenizer, "AT_ONCE", 2)
    monkeypatch.setattr(pretokenizer, "BATCH", 3)
    for text, pieces in zip(texts, expected, strict=True):
        assert [piece for batch in pre.batches(text) for piece in batch] == pieces, text


@pytest.mark.parametrize("lowercase", [True, False])
def test_words_of_a_text_that_is_cut(lowercase: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = {"tokenizer.ggml.tokens": ["[UNK]", "▁a"], "tokenizer.ggml.token_type": [NORMAL, NORMAL]}
    metadata = {"general.architecture": "bert", "tokenizer.ggml.model": "bert", **keys}
    assert from_metadata(metadata).longest_token is None  # white space vanishes
    model = WordPieceModel(read_vocabulary({**metadata, "tokenizer.ggml.normalizer.lowercase": lowercase}))
    texts = [*wild_texts(4), prose(3_000), "ΑΣ Σ ΑΣ.", "A\u030a e\u0301.\u0301 \u0327\u0301a中\u0301", "İ Σ"]
    expected = [model.words(text) for text in texts]
    monkeypatch.setattr(wordpiece, "AT_ONCE", 1)
    for text, words in zip(texts, expected, strict=True):
        assert [word for part in wordpiece._parts(text) for word in model.words(part)] == words, text


def test_lower_case_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bpe, "AT_ONCE", 2)
    for text in (*wild_texts(5)[::5], "ΑΣ Σ", ""):
        assert bpe.lower(text) == "".join(map(str.lower, text))


def test_merges_of_long_pieces() -> None:
    """Against the `tokenizers` library: more pairs than are sorted by insertion, ranks in any order."""
    rng = random.Random(3)
    for _ in range(scaled(40, quick=8)):
        tokens, merges = list("abcd"), []
        while len(tokens) < 60:
            left, right = rng.choices(tokens, k=2)
            if left + right not in tokens:
                tokens.append(left + right)
                merges.append(f"{left} {right}")
        ours, theirs = from_metadata(bpe_metadata(tokens, merges)), hf_bpe(tokens, merges)
        alphabet = rng.choice(("abcd", "ab", "a"))
        for size in (33, 500, 5_000):
            text = "".join(rng.choices(alphabet, k=size))
            assert ours.encode(text, add_special=False) == theirs.encode(text).ids


def test_a_long_prose_is_that_of_the_reference(spm_model: Any) -> None:
    text = prose(200_000, seed=9) + " " * 3_000 + "\n" * 3_000 + "x" * 20_000
    assert from_metadata(spm_metadata(spm_model)).encode(text, add_special=False) == spm_model.encode(text)


# -- threads and checkpoints -------------------------------------------------------------------------------------------


def longest_wait(work: Callable[[], object]) -> tuple[float, float]:
    """Seconds that the work took in another thread, and the longest time in which this one could not run."""
    took = []

    def timed() -> None:
        begin = time.perf_counter()
        work()
        took.append(time.perf_counter() - begin)

    thread = threading.Thread(target=timed)
    thread.start()
    longest, last = 0.0, time.perf_counter()
    while thread.is_alive():
        time.sleep(0.001)
        longest, last = max(longest, time.perf_counter() - last), time.perf_counter()
    join(thread)
    return took[0], longest


@pytest.mark.timing("how long the system lets this thread rest while another one reads")
@pytest.mark.parametrize("kind", ["bpe", "spm", "unigram"])
@pytest.mark.parametrize("text", ["\n", "once upon a time "])
def test_other_threads_run(tokenizers: dict[str, Tokenizer], kind: str, text: str) -> None:
    long = text * (1_500_000 // len(text))
    tokenizers[kind].encode("a")
    # A busy machine may keep a thread from running for a while, but hardly five times.
    assert any(longest < 0.7 * took for took, longest in (longest_wait(lambda: tokenizers[kind].encode(long))
                                                        for _ in range(5)))  # fmt: skip


@pytest.mark.parametrize("kind", ["bpe", "spm", "unigram"])
@pytest.mark.parametrize("text", ["\n", "once upon a time ", "x", "<|end|>"])
def test_a_checkpoint_ends_it(tokenizers: dict[str, Tokenizer], kind: str, text: str) -> None:
    calls: list[int] = []

    def third() -> None:
        calls.append(1)
        if len(calls) == 3:
            raise EnoughError

    with pytest.raises(EnoughError):
        tokenizers[kind].encode(text * (600_000 // len(text)), checkpoint=third)
    assert len(calls) == 3
    assert tokenizers[kind].encode("after") == tokenizers[kind].encode("after", checkpoint=third)


def test_a_signal_ends_it(story: Tokenizer) -> None:
    def handler(number: int, frame: FrameType | None) -> None:
        raise EnoughError

    before = signal.signal(signal.SIGVTALRM, handler)
    try:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.05)
        with pytest.raises(EnoughError):
            story.encode("x" * 8_000_000)
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def test_runs_of_one_character_take_linear_time(story: Tokenizer) -> None:
    def seconds(n: int) -> float:
        begin = time.process_time()
        story.encode("\n" * n)
        return time.process_time() - begin

    seconds(10)
    small = min(seconds(100_000) for _ in range(3))
    assert min(seconds(800_000) for _ in range(3)) < 8 * 4 * small


# -- no memory ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        ImportError("_regex.so: failed to map segment from shared object"),
        OSError(12, "Cannot allocate memory"),
    ],
)
def test_no_memory_to_import_what_splits_texts(
    bpe_vocab: Vocab, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first text imports it, long after the model was loaded."""

    class NoMemory:
        def find_spec(self, name: str, *_: object) -> None:
            if name == pretokenizer.__name__:
                raise error

    tokenizer = from_metadata(bpe_metadata(*bpe_vocab, pre="llama-bpe"))
    with monkeypatch.context() as patch:
        patch.delitem(sys.modules, pretokenizer.__name__)
        patch.setattr(sys, "meta_path", [NoMemory(), *sys.meta_path])
        with pytest.raises(NoMemoryError, match="address space"):
            tokenizer.encode("One day")
    assert tokenizer.encode("One day")
