"""Engine.embed and Engine.rank: options, errors, threads, asyncio, and generation at the same time."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import patch

import gguf
import numpy as np
import pytest

from ollama_engine import Engine, SamplingParams
from ollama_engine.errors import (
    ClosedError,
    ComputeError,
    ConfigError,
    ContextOverflowError,
    EngineBusyError,
    NoMemoryError,
    ShapeError,
    TokenizerError,
    UnsupportedModelError,
)
from ollama_engine.runner.embed.call import EmbeddingCall
from tests.models import encoders
from tests.models.cases import N_CTX, difference
from tests.support.engine_thread import held, held_in
from tests.support.gguf_files import write_and_close
from tests.support.tiny import write_tiny_llama
from tests.support.waiting import eventually

TEXTS = ["a small thing", "what is it", "it is a thing", "x", "", "a small thing, and there it ends " * 3]
CPU: dict[str, Any] = {"threads": 1, "gpu_layers": 0}
SAME = 1e-4
LONG = 4_000
"""Texts of a call that takes many batches."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(tmp_path_factory.mktemp("embed"))


@pytest.fixture(scope="module")
def bert_path(folder: Path) -> Path:
    return encoders.converted(encoders.case("bert"), folder)


@pytest.fixture(scope="module")
def bert(bert_path: Path) -> Iterator[Engine]:
    with Engine(bert_path, batch_size=64, **CPU) as engine:
        yield engine


@pytest.fixture(scope="module")
def ranker(folder: Path) -> Iterator[Engine]:
    with Engine(encoders.converted(encoders.case("bert-ranker"), folder), **CPU) as engine:
        yield engine


@pytest.fixture(scope="module")
def llama(folder: Path) -> Iterator[Engine]:
    path = write_tiny_llama(folder / "llama.gguf", n_ctx=256).path
    with Engine(path, num_ctx=256, batch_size=64, kv_cache_type="f32", **CPU) as engine:
        yield engine


# -- what comes out ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["bert", "llama"])
def test_shapes(name: str, request: pytest.FixtureRequest) -> None:
    engine: Engine = request.getfixturevalue(name)
    many = engine.embed(TEXTS[:3])
    assert many.shape == (3, 64)
    assert many.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(many, axis=1), 1, rtol=1e-6)
    np.testing.assert_allclose(engine.embed(TEXTS[1]), many[1], atol=SAME)
    ids = engine.tokenize(TEXTS[1])
    np.testing.assert_allclose(engine.embed(ids), many[1], atol=SAME)
    np.testing.assert_allclose(engine.embed([ids, ids])[1], many[1], atol=SAME)
    for prompt in (tuple(ids), np.array(ids)):
        np.testing.assert_allclose(engine.embed(prompt), many[1], atol=SAME)
    for several in (tuple(TEXTS[:3]), (ids, TEXTS[1])):
        assert engine.embed(several).shape == (len(several), 64)
    assert engine.embed([]).shape == engine.embed(()).shape == (0, 64)


def test_dimensions_and_lengths(bert: Engine) -> None:
    whole = bert.embed(TEXTS, normalize=False)
    assert abs(np.linalg.norm(whole[0]) - 1) > 0.01
    cut = bert.embed(TEXTS, dimensions=16)
    assert cut.shape == (len(TEXTS), 16)
    np.testing.assert_allclose(np.linalg.norm(cut, axis=1), 1, rtol=1e-6)
    expected = whole[:, :16] / np.linalg.norm(whole[:, :16], axis=1, keepdims=True)
    np.testing.assert_allclose(cut, expected, atol=SAME)
    np.testing.assert_allclose(bert.embed(TEXTS, dimensions=16, normalize=False), whole[:, :16], atol=SAME)


def test_embeddings_tell_of_tokens(bert: Engine) -> None:
    found = bert.embeddings(TEXTS)
    assert [embedding.prompt_tokens for embedding in found] == [len(bert.tokenize(text)) for text in TEXTS]
    assert not any(embedding.dropped_tokens for embedding in found)
    np.testing.assert_allclose(np.stack([embedding.vector for embedding in found]), bert.embed(TEXTS), atol=SAME)
    rows = bert.embeddings(TEXTS, pooling="none", normalize=False)
    assert [embedding.vector.shape for embedding in rows] == [(embedding.prompt_tokens, 64) for embedding in found]
    means = np.stack([embedding.vector.mean(0) for embedding in rows])
    np.testing.assert_allclose(bert.embed(TEXTS, normalize=False), means, atol=SAME)


def test_hidden_states_of_a_model_that_writes(folder: Path) -> None:
    """The output matrix makes of them the logits that the engine has."""
    model = write_tiny_llama(folder / "windows.gguf", n_ctx=256, sliding_window=24, seed=3)
    ids = [5 + i % 200 for i in range(90)]
    with Engine(model.path, num_ctx=256, batch_size=64, kv_cache_type="f32", **CPU) as engine:
        (rows,) = engine.embeddings([ids], pooling="none", normalize=False)
        assert difference(rows.vector @ model.weights["output.weight"].T, engine.logits(ids)) <= SAME
        np.testing.assert_allclose(engine.embed(ids, normalize=False), rows.vector[-1], atol=SAME)
        np.testing.assert_allclose(engine.embed(ids, pooling="mean", normalize=False), rows.vector.mean(0), atol=SAME)


@pytest.mark.parametrize(("said", "expected"), [(None, "mean"), (0, "mean"), (1, "mean"), (2, "cls"), (3, "last")])
def test_the_file_says_which_pooling(said: int | None, expected: Any, bert_path: Path, tmp_path: Path) -> None:
    path = with_key(bert_path, tmp_path / "said.gguf", "bert.pooling_type", said)
    with Engine(path, **CPU) as engine:
        assert (engine.info.n_embd, engine.info.pooling) == (64, expected)
        np.testing.assert_array_equal(engine.embed(TEXTS), engine.embed(TEXTS, pooling=expected))


def test_a_pooling_that_nobody_knows(bert_path: Path, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match=r"bert\.pooling_type is 9; known: 0 to 4"):
        Engine(with_key(bert_path, tmp_path / "said.gguf", "bert.pooling_type", 9), **CPU)


def with_key(source: Path, target: Path, key: str, value: int | None) -> Path:
    """A copy of a file with one more key."""
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(target, str(reader.fields["general.architecture"].contents()))
    for name, field in reader.fields.items():
        if not name.startswith("GGUF.") and name != "general.architecture":
            kind = field.types[0]
            writer.add_key_value(name, field.contents(), kind, field.types[-1] if kind.name == "ARRAY" else None)
    if value is not None:
        (writer.add_int32 if value < 0 else writer.add_uint32)(key, value)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data)
    write_and_close(writer)
    return target


# -- what does not fit -------------------------------------------------------------------------------------------------


def test_long_texts(bert: Engine) -> None:
    text = "thing " * N_CTX
    with pytest.raises(ContextOverflowError, match=rf'has \d+ tokens, but num_ctx is {N_CTX}.*on_overflow="truncate"'):
        bert.embed(["a", text])
    ids = bert.tokenize(text)
    (found,) = bert.embeddings([text], on_overflow="truncate")
    assert (found.prompt_tokens, found.dropped_tokens) == (len(ids), len(ids) - N_CTX)
    # The separator stays at the end.
    np.testing.assert_allclose(found.vector, bert.embed([*ids[: N_CTX - 1], ids[-1]]), atol=SAME)
    assert bert.embeddings(["a"], on_overflow="truncate")[0].dropped_tokens == 0


def test_texts_longer_than_a_batch(bert: Engine) -> None:
    """A batch is one text at least."""
    texts = ["a thing " * n for n in (40, 1, 30, 2)]
    assert len(bert.tokenize(texts[0])) > 64
    np.testing.assert_allclose(bert.embed(texts), np.stack([bert.embed(text) for text in texts]), atol=SAME)


@pytest.mark.parametrize("name", ["bert", "llama"])
def test_short_contexts_fill_batches_too(name: str, request: pytest.FixtureRequest) -> None:
    """Texts of one batch may be more than num_ctx together."""
    other: Engine = request.getfixturevalue(name)
    ids = [[5 + i, 6, 7, 8] for i in range(100)]
    with Engine(other.info.path, num_ctx=8, parallel=1, kv_cache_type="f32", **CPU) as engine:
        np.testing.assert_allclose(engine.embed(ids), other.embed(ids), atol=SAME)


@pytest.mark.parametrize("name", ["bert", "nomic-bert", "modern-bert", "llama"])
@pytest.mark.parametrize("flash", ["on", "off"])
def test_texts_that_share_parts_of_a_batch(name: str, flash: Any, folder: Path) -> None:
    """Batches of 128 rows, in parts of 64 where texts fit into them, give what each text gives alone."""
    if name == "llama":
        path = write_tiny_llama(folder / "windows.gguf", n_ctx=256, sliding_window=24, seed=3).path
    else:
        path = str(encoders.converted(encoders.case(name), folder))
    ids = [[5 + (i + k) % 50 for k in range(n)] for i, n in enumerate((40, 24, 60, 3, 64, 64, 16, 16, 32, 7, 50))]
    with Engine(path, num_ctx=64, batch_size=128, kv_cache_type="f32", flash_attention=flash, **CPU) as engine:
        alone = np.stack([engine.embed(text, normalize=False) for text in ids])
        np.testing.assert_allclose(engine.embed(ids, normalize=False), alone, atol=SAME)


WRONG: list[tuple[str, dict[str, Any], Any, type[Exception], str]] = [
    ("bert", {"dimensions": 0}, "a", ConfigError, "dimensions is a whole number from 1 to 64, got 0"),
    ("bert", {"dimensions": 65}, "a", ConfigError, "dimensions is a whole number from 1 to 64"),
    ("bert", {"dimensions": 1.5}, "a", ConfigError, "dimensions"),
    ("bert", {"pooling": "max"}, "a", ConfigError, "pooling is one of"),
    ("bert", {"pooling": "rank"}, "a", ConfigError, "scores of pairs come from Engine.rank"),
    ("bert", {"pooling": "none"}, "a", ConfigError, "Engine.embeddings"),
    ("bert", {"normalize": 1}, "a", ConfigError, "normalize is True or False"),
    ("bert", {"on_overflow": "shift"}, "a", ConfigError, "on_overflow is one of error, truncate"),
    ("bert", {}, [1, 320], TokenizerError, "token 320 is not in the vocabulary"),
    ("bert", {}, [[1], []], ConfigError, r"texts\[1\]: a text has no tokens"),
    ("bert", {"timeout": 0}, "a", ConfigError, "timeout is a number of seconds above 0, or None, got 0"),
    ("bert", {"priority": 0.5}, "a", ConfigError, "priority is a whole number from -2147483648 to 2147483648"),
    ("bert", {}, b"a", ConfigError, "a str or a sequence of token ids"),
    ("bert", {}, ["a", None], ConfigError, "a str or a sequence of token ids"),
    ("llama", {"pooling": "cls"}, "a", ConfigError, "the first token of this model has seen nothing else"),
    ("ranker", {}, "a", ConfigError, "this model ranks documents"),
]


@pytest.mark.parametrize(("name", "options", "texts", "kind", "told"), WRONG)
def test_refusals(
    name: str, options: dict[str, Any], texts: Any, kind: type[Exception], told: str, request: pytest.FixtureRequest
) -> None:
    engine: Engine = request.getfixturevalue(name)
    with pytest.raises(kind, match=told):
        engine.embed(texts, **options)


def test_facts(llama: Engine, ranker: Engine) -> None:
    assert (llama.info.n_embd, llama.info.pooling) == (64, "last")
    assert (ranker.info.n_embd, ranker.info.pooling) == (64, None)


def test_a_ranker_embeds_where_it_is_told_how(ranker: Engine) -> None:
    assert ranker.embed(TEXTS, pooling="mean").shape == (len(TEXTS), 64)


@pytest.mark.parametrize("name", ["bert", "llama"])
def test_models_that_rank_nothing(name: str, request: pytest.FixtureRequest) -> None:
    with pytest.raises(
        ConfigError, match="ranking takes a model with a classification head of one score; this model has none"
    ):
        request.getfixturevalue(name).rank("a", ["b"])


def test_an_encoder_writes_nothing(bert: Engine) -> None:
    told = r"bert reads texts and writes none: it has embeddings \(Engine.embed\)"
    for ask in (bert.generate, bert.submit, bert.logits, bert.session().append):
        with pytest.raises(ConfigError, match=told):
            ask("a")
    assert bert.embed("a").shape == (64,)
    with pytest.raises(ConfigError, match=told):
        bert.chat([{"role": "user", "content": "Hello"}])


def test_bert_has_no_more_positions(bert_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"num_ctx is {N_CTX + 1}, but the model has {N_CTX} positions"):
        Engine(bert_path, num_ctx=N_CTX + 1, **CPU)
    with Engine(bert_path, num_ctx=16, **CPU) as engine, pytest.raises(ContextOverflowError, match="num_ctx is 16"):
        engine.embed("thing " * 20)


def test_ranking(ranker: Engine) -> None:
    scores = ranker.rank("what is it", TEXTS)
    assert scores.shape == (len(TEXTS),)
    assert scores.dtype == np.float32
    np.testing.assert_allclose(ranker.rank("what is it", TEXTS[2:3]), scores[2:3], atol=SAME)
    assert ranker.rank("what is it", []).shape == (0,)
    with pytest.raises(ContextOverflowError, match="num_ctx"):
        ranker.rank("what is it", ["thing " * N_CTX])
    assert ranker.rank("what is it", ["thing " * N_CTX], on_overflow="truncate").shape == (1,)
    with pytest.raises(ConfigError, match=r"query and documents are texts"):
        ranker.rank("what is it", [[1, 2]])  # type: ignore[list-item]
    with pytest.raises(ConfigError, match="documents are a list of texts, got str"):
        ranker.rank("what is it", "it is")


def test_nan_is_told_to_whom_it_concerns(folder: Path) -> None:
    case = encoders.case("bert")
    golden = encoders.load(case)
    weights = case.weights(golden.shapes)
    weights["embeddings.word_embeddings.weight"][7] = np.nan
    from ollama_engine.convert import convert_model  # noqa: PLC0415

    convert_model(case.write(folder / "nan", golden.config, weights), folder / "nan.gguf", "f32")
    with Engine(folder / "nan.gguf", **CPU) as engine:
        with pytest.raises(ComputeError, match=r"texts\[1\]: .*NaN or infinity"):
            engine.embed([[8, 9], [7, 9]])
        # Others of the same batch are sound.
        with ThreadPoolExecutor(8) as pool:
            jobs = [pool.submit(engine.embed, [[7 if i % 2 else 8, 9]]) for i in range(16)]
        for i, job in enumerate(jobs):
            if i % 2:
                assert isinstance(job.exception(), ComputeError)
            else:
                assert np.isfinite(job.result()).all()


def test_truncation_keeps_the_query(ranker: Engine) -> None:
    query = "what is it, " * 6
    room = N_CTX - len(ranker.tokenize(query)) - 1
    assert len(ranker.tokenize("a " * room)) == room + 2
    long = [word * N_CTX for word in ("x ", "a ")]
    cut = ranker.rank(query, long, on_overflow="truncate")
    assert abs(cut[0] - cut[1]) > SAME
    short = [word * room for word in ("x ", "a ")]
    np.testing.assert_allclose(cut, ranker.rank(query, short), atol=SAME)
    with pytest.raises(ContextOverflowError, match="no token of a text has room"):
        ranker.rank("what is it, " * N_CTX, ["a"], on_overflow="truncate")


@pytest.mark.parametrize("said", [-1, 4, 7])
def test_a_model_that_writes_opens_with_any_pooling(said: int, llama: Engine, tmp_path: Path) -> None:
    path = with_key(Path(llama.info.path), tmp_path / "said.gguf", "llama.pooling_type", said)
    with Engine(path, num_ctx=256, kv_cache_type="f32", **CPU) as engine:
        assert engine.info.pooling is None
        assert len(engine.generate("a", SamplingParams(max_tokens=2, logit_bias={318: -np.inf, 319: -np.inf})).tokens)
        with pytest.raises(ConfigError, match=r"llama\.pooling_type names no way .* say which pooling: last or mean"):
            engine.embed("a")
        np.testing.assert_allclose(engine.embed("a", pooling="last"), llama.embed("a"), atol=SAME)


@pytest.mark.parametrize("name", ["bert", "llama"])
def test_masks_that_do_not_fit(name: str, bert_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = bert_path if name == "bert" else write_tiny_llama(tmp_path / "llama.gguf", n_ctx=256).path
    encoders.mask_texts(monkeypatch)
    with Engine(path, num_ctx=64, **CPU) as engine:
        with monkeypatch.context() as patch:
            patch.setattr("ollama_engine.kvcache.null._CHECKED_FROM", 0)
            patch.setattr("ollama_engine.kvcache.null.available_bytes", lambda: 7)
            with pytest.raises(NoMemoryError, match="the mask of 2 tokens in one batch"):
                engine.embed([5, 6])
        assert engine.embed([5, 6]).shape == (64,)


def under_way(engine: Engine) -> int:
    """Calls that came to the engine; in this order, one that is just taken in is not counted twice."""
    return len(engine.slots()) + engine._engine_thread.coming


# -- together ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["bert", "llama"])
def test_many_threads(name: str, request: pytest.FixtureRequest) -> None:
    engine: Engine = request.getfixturevalue(name)
    texts = [" ".join(f"thing {j % 7}" for j in range(i % 9 + 1)) for i in range(40)]
    alone = [engine.embed(text) for text in texts]
    with ThreadPoolExecutor(8) as pool:
        for text_number, found in enumerate(pool.map(engine.embed, texts)):
            np.testing.assert_allclose(found, alone[text_number], atol=SAME)


def test_calls_are_computed_together(bert: Engine) -> None:
    before = bert.metrics
    with ThreadPoolExecutor(9) as pool:
        with held_in(bert._embedding()._batcher._embedder, "compute") as is_held:
            first = pool.submit(bert.embed, "a")
            is_held()
            with patch.object(EmbeddingCall, "feed", counted(fed := threading.Semaphore(0))):
                others = [pool.submit(bert.embed, "b") for _ in range(8)]
                assert all(fed.acquire(timeout=30) for _ in others)
        for job in (first, *others):
            assert job.result().shape == (64,)
    assert bert.metrics.embedded_texts - before.embedded_texts == 9
    assert bert.metrics.embed_batches - before.embed_batches <= 3


def counted(fed: threading.Semaphore) -> Any:
    """A method that hands in the texts of a call, and says that it has."""
    feed = EmbeddingCall.feed

    def tell(call: EmbeddingCall[Any]) -> None:
        feed(call)
        fed.release()

    return tell


def test_a_short_call_does_not_wait_for_a_long_one(bert: Engine) -> None:
    with ThreadPoolExecutor(2) as pool:
        with held_in(bert._embedding()._batcher._embedder, "compute", calls=3):
            with held(bert), patch.object(EmbeddingCall, "feed", counted(fed := threading.Semaphore(0))):
                long = pool.submit(bert.embed, [[5, 6, 7]] * LONG)
                assert fed.acquire(timeout=30)
                short = pool.submit(bert.embed, TEXTS[:3])
                assert fed.acquire(timeout=30)
            assert short.result(30).shape == (3, 64)
            assert not long.done()
        assert long.result().shape == (LONG, 64)


def test_answers_and_embeddings_at_once(llama: Engine) -> None:
    """Embedding takes no cells, and changes no answer under way; its graphs lie in the same memory."""
    params = SamplingParams(temperature=0, max_tokens=60, logit_bias={318: -np.inf, 319: -np.inf})
    prompts = [[10 + i, 50, 60 + i] for i in range(6)]
    answers = [llama.generate(prompt, params, cache=False).tokens for prompt in prompts]
    alone = llama.embed(TEXTS)
    with ThreadPoolExecutor(8) as pool:
        writing = [pool.submit(llama.generate, prompt, params, cache=False) for prompt in prompts]
        reading = [pool.submit(llama.embed, TEXTS) for _ in range(20)]
        assert [job.result().tokens for job in writing] == answers
        for job in reading:
            np.testing.assert_allclose(job.result(), alone, atol=SAME)


def test_too_many_calls(bert_path: Path) -> None:
    with Engine(bert_path, max_queue=1, parallel=1, **CPU) as engine, ThreadPoolExecutor(2) as pool:
        engine.embed("a")
        with held_in(engine._embedding()._batcher._embedder, "compute"):
            long = [pool.submit(engine.embed, [[5, 6, 7]] * LONG) for _ in range(2)]
            eventually(lambda: under_way(engine) == 2)
            with pytest.raises(EngineBusyError, match="max_queue is 1"):
                engine.embed("a")
        assert all(job.result().shape == (LONG, 64) for job in long)
        assert engine.embed("a").shape == (64,)


def test_wrong_calls_among_right_ones(ranker: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """What one caller gives wrong is no matter of those whose texts are in the same batch."""
    loaded = ranker._submission.loaded
    tokenizer = loaded.tokenizer

    class Odd:
        def __getattr__(self, name: str) -> Any:
            return getattr(tokenizer, name)

        def encode(self, text: str, **options: Any) -> list[int]:
            return [] if text == "nothing" else tokenizer.encode(text, **options) + [9999] * (text == "wrong")

    expected, vector = ranker.rank("what is it", TEXTS), ranker.embed("x", pooling="mean")
    monkeypatch.setattr(loaded, "tokenizer", Odd())
    with ThreadPoolExecutor(8) as pool:
        for _ in range(10):
            wrong = pool.submit(ranker.rank, "what is it", ["x", "wrong"])
            empty = pool.submit(ranker.rank, "nothing", ["nothing"])
            ids = pool.submit(ranker.embed, [[5], [9999]], pooling="mean")
            right = pool.submit(ranker.rank, "what is it", TEXTS)
            embedded = pool.submit(ranker.embed, "x", pooling="mean")
            np.testing.assert_allclose(right.result(), expected, atol=SAME)
            np.testing.assert_allclose(embedded.result(), vector, atol=SAME)
            with pytest.raises(TokenizerError, match=r"documents\[1\]: token 9999"):
                wrong.result()
            with pytest.raises(ConfigError, match=r"documents\[0\]: a text has no tokens"):
                empty.result()
            with pytest.raises(TokenizerError, match=r"texts\[1\]: token 9999"):
                ids.result()


# -- asyncio, and ends -------------------------------------------------------------------------------------------------


def test_asyncio(bert: Engine, ranker: Engine) -> None:
    async def work() -> None:
        found = await asyncio.gather(*(bert.aembed(text) for text in TEXTS))
        np.testing.assert_allclose(np.stack(found), bert.embed(TEXTS), atol=SAME)
        assert (await bert.aembed(TEXTS, dimensions=8)).shape == (len(TEXTS), 8)
        assert [embedding.prompt_tokens for embedding in await bert.aembeddings(["a"])] == [3]
        np.testing.assert_allclose(await ranker.arank("a", TEXTS), ranker.rank("a", TEXTS), atol=SAME)
        with pytest.raises(ContextOverflowError):
            await bert.aembed("thing " * N_CTX)

    asyncio.run(work())


def test_a_cancelled_task_takes_its_texts_back(bert: Engine) -> None:
    async def work() -> None:
        task = asyncio.create_task(bert.aembed(["a thing"] * 5_000))
        await asyncio.sleep(0)
        await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await bert.aembed("a")).shape == (64,)

    asyncio.run(work())
    eventually(lambda: not bert.slots())


@pytest.mark.parametrize("queued", [False, True])
def test_an_interrupt_as_texts_are_handed_in(bert: Engine, monkeypatch: pytest.MonkeyPatch, queued: bool) -> None:
    """Before or after they came to the loop: they are taken back, and with them their place in the queue."""
    alone, post = bert.embed("a"), bert._engine_thread.post

    def interrupted(task: Any) -> None:
        if queued:
            post(task)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(bert._engine_thread, "post", interrupted)
        for _ in range(3):
            with pytest.raises(KeyboardInterrupt):
                bert.embed([[5, 6, 7]] * 2_000)
            eventually(lambda: not under_way(bert))
    np.testing.assert_allclose(bert.embed("a"), alone, atol=SAME)


def test_closing_frees_the_graphs(llama: Engine) -> None:
    with Engine(llama.info.path, num_ctx=256, **CPU) as engine:
        engine.embed(TEXTS)
        loaded = engine._submission.loaded
        assert loaded.text_executor is not None
        (graph,) = loaded.text_executor._graphs._graphs.values()
    assert not len(loaded.text_executor._graphs)
    has_lock = getattr(sys, "_is_gil_enabled", lambda: True)()
    with pytest.raises(ClosedError if has_lock else ShapeError):  # without a lock only the thread that made it may ask
        graph.ctx.input("f32", (1,))


def test_closing_ends_what_waits(bert_path: Path) -> None:
    engine = Engine(bert_path, **CPU)
    with ThreadPoolExecutor(4) as pool:
        with held_in(engine._embedding()._batcher._embedder, "compute"):
            jobs = [pool.submit(engine.embed, [[5, 6, 7]] * 1_000) for _ in range(4)]
            eventually(lambda: under_way(engine) == 4)
            engine._engine_thread.close(wait=False)
        engine.close()
        assert all(isinstance(job.exception(), ClosedError) for job in jobs)
    with pytest.raises(ClosedError):
        engine.embed("a")
    with pytest.raises(ClosedError):
        engine.rank("a", ["b"])
