"""What Engine answers: text, tokens, log-probabilities, logits, and every error that its docstrings name."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ollama_engine import Chunk, Completion, Engine, SamplingParams, demo
from ollama_engine.errors import ConfigError, ContextOverflowError, EngineError, SamplingError, TokenizerError
from tests.support.near import same_logprobs
from tests.support.tiny import write_tiny_llama
from tests.support.tiny_answers import BOS, EOS, EOT, N_VOCAB, NO_END

PROMPT = [5, 77, 200, 31, 8]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    path = write_tiny_llama(tmp_path_factory.mktemp("tiny") / "tiny.gguf", n_layer=1).path
    with Engine(path, num_ctx=128, parallel=1, batch_size=32, threads=1, kv_cache_type="f32") as engine:
        yield engine


@pytest.fixture(scope="module")
def story() -> Iterator[Engine]:
    with Engine(demo.path(), num_ctx=256, parallel=1, threads=1) as engine:
        yield engine


def greedy(**fields: Any) -> SamplingParams:
    return SamplingParams(**{"temperature": 0, "max_tokens": 12, **fields})


def plain(engine: Engine, **fields: Any) -> Completion:
    """A greedy completion of the prompt that does not end by itself."""
    return engine.generate(PROMPT, greedy(logit_bias=NO_END, **fields))


def test_hundreds_of_requests_side_by_side(story: Engine) -> None:
    """More than the rows that attention takes alike (`kvcache.config.PAGED_ROWS`): each as if it were alone."""
    prompts = [f"Once upon a time there were {n} foxes" for n in range(300)]
    with Engine(demo.path(), num_ctx=64, parallel=300, threads=1) as engine:
        answers = engine.generate(prompts, greedy())
    for n in range(0, 300, 50):
        assert answers[n].text == story.generate(prompts[n], greedy()).text


# -- tokens and their number -------------------------------------------------------------------------------------------


def test_greedy_tokens_are_the_best_of_the_logits(tiny: Engine) -> None:
    found = plain(tiny)
    rows = tiny.logits([*PROMPT, *found.tokens])
    rows[:, [EOS, EOT]] = -np.inf
    assert found.tokens == tuple(rows.argmax(axis=1)[len(PROMPT) - 1 : -1])
    assert found.text == tiny.detokenize(found.tokens)


@pytest.mark.parametrize(
    "prompt", [PROMPT, tuple(PROMPT), np.array(PROMPT), np.array(PROMPT, dtype=np.int16)], ids=type
)
def test_a_prompt_of_ids_is_any_sequence_of_whole_numbers(tiny: Engine, prompt: Any) -> None:
    assert tiny.generate(prompt, greedy(logit_bias=NO_END)).tokens == plain(tiny).tokens


def test_a_prompt_of_text_is_tokenized_with_its_begin_token(tiny: Engine) -> None:
    ids = tiny.tokenize("Hello, world")
    assert ids[0] == BOS
    assert tiny.generate("Hello, world", greedy()).tokens == tiny.generate(ids, greedy()).tokens
    assert tiny.tokenize("Hello, world", add_special=False) == ids[1:]
    assert tiny.detokenize(ids) == "Hello, world"
    assert tiny.tokenize("<|eot_id|>", add_special=False) == [EOT]
    assert EOT not in tiny.tokenize("<|eot_id|>", parse_special=False)


@pytest.mark.parametrize("n", [0, 1, 7])
def test_max_tokens(tiny: Engine, n: int) -> None:
    found = plain(tiny, max_tokens=n)
    assert (len(found.tokens), found.finish_reason) == (n, "length")
    assert found.tokens == plain(tiny).tokens[:n]
    assert (found.usage.prompt_tokens, found.usage.completion_tokens) == (len(PROMPT), n)


@pytest.mark.parametrize("n_prompt", [1, 100, 127])
def test_prompt_and_answer_together_fill_num_ctx_and_no_more(tiny: Engine, n_prompt: int) -> None:
    found = tiny.generate([7] * n_prompt, SamplingParams(max_tokens=None, logit_bias=NO_END, seed=1))
    assert (len(found.tokens), found.finish_reason) == (128 - n_prompt, "length")


def test_a_prompt_that_leaves_no_place_for_an_answer(tiny: Engine) -> None:
    full, params = [7] * 128, SamplingParams(max_tokens=20, logit_bias=NO_END, seed=1)
    with pytest.raises(ContextOverflowError, match="has 128 tokens, but num_ctx is 128: no place is left for an answ"):
        tiny.generate(full, params)
    assert tiny.generate(full, SamplingParams(max_tokens=0)).finish_reason == "length", "none is wanted"
    cut = tiny.generate(full, params, on_overflow="truncate")
    assert (len(cut.tokens), cut.usage.dropped_prompt_tokens) == (20, 20)
    shifted = tiny.generate(full, params, on_overflow="shift")
    assert (len(shifted.tokens), shifted.usage.shifted_tokens) == (20, 64)


@pytest.mark.parametrize("end", [EOS, EOT])
def test_any_end_token_ends_the_answer_and_is_no_part_of_it(tiny: Engine, end: int) -> None:
    found = tiny.generate(PROMPT, greedy(logit_bias={end: 1e6}))
    assert (found.tokens, found.text, found.finish_reason) == ((), "", "stop")
    assert found.usage.completion_tokens == 0


def test_logit_bias_forces_and_bans(tiny: Engine) -> None:
    assert plain(tiny).tokens[0] != 42
    forced = tiny.generate(PROMPT, greedy(logit_bias={42: 1e6}, max_tokens=3))
    assert forced.tokens == (42, 42, 42)
    first = plain(tiny).tokens[0]
    banned = tiny.generate(PROMPT, SamplingParams(logit_bias={**NO_END, first: float("-inf")}, max_tokens=60, seed=3))
    assert first not in banned.tokens


def test_tokens_that_the_file_suppresses_never_come(tmp_path: Path) -> None:
    """`tokenizer.ggml.suppress_tokens`, as llama.cpp writes it; a caller's bias does not bring them back."""
    metadata = {"tokenizer.ggml.suppress_tokens": [5, 6]}
    path = write_tiny_llama(tmp_path / "banned.gguf", n_layer=1, metadata=metadata).path
    with Engine(path) as engine:
        raised = engine.generate("a", greedy(max_tokens=4, logit_bias={5: 100.0, 6: 90.0, 7: 80.0}))
    assert raised.tokens == (7,) * 4


def test_the_same_seed_gives_the_same_tokens(tiny: Engine) -> None:
    def draw(seed: int | None) -> tuple[int, ...]:
        return tiny.generate(PROMPT, SamplingParams(seed=seed, max_tokens=20, temperature=1.5, top_k=0)).tokens

    assert draw(1) == draw(1)
    assert len({draw(1), draw(2), draw(None), draw(None)}) == 4


def test_penalties_look_at_the_prompt(tiny: Engine) -> None:
    """Every token of the prompt is made as good as forbidden."""
    rows = tiny.logits(PROMPT)
    best = int(rows[-1].argmax())
    found = tiny.generate(
        [*PROMPT[:-1], best, PROMPT[-1]], greedy(max_tokens=1, presence_penalty=1e6, repeat_last_n=-1)
    )
    assert found.tokens[0] not in {*PROMPT, best}


def test_padding_rows_of_the_output_are_not_drawn(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    table = rng.standard_normal((N_VOCAB + 64, 64)).astype(np.float32)
    tensors = {"token_embd.weight": table, "output.weight": table}
    path = write_tiny_llama(tmp_path / "padded.gguf", n_layer=1, tensors=tensors).path
    with Engine(path, num_ctx=64, threads=1) as engine:
        assert engine.info.n_vocab == N_VOCAB + 64
        assert engine.logits([N_VOCAB + 3]).shape == (1, N_VOCAB + 64)
        found = engine.generate(PROMPT, SamplingParams(temperature=50.0, top_k=0, top_p=1, max_tokens=59, seed=0))
        assert max(found.tokens) < N_VOCAB


# -- log-probabilities and logits --------------------------------------------------------------------------------------


def test_logprobs_are_the_log_softmax_of_the_logits(tiny: Engine) -> None:
    found = plain(tiny, logprobs=3)
    rows = tiny.logits([*PROMPT, *found.tokens]).astype(np.float64)[len(PROMPT) - 1 : -1]
    expected = rows - np.log(np.exp(rows).sum(axis=1, keepdims=True))
    assert found.logprobs is not None
    assert [entry.token for entry in found.logprobs] == list(found.tokens)
    for entry, row in zip(found.logprobs, expected, strict=True):
        assert entry.logprob == pytest.approx(row[entry.token], abs=1e-4)
        assert [token for token, _ in entry.top] == np.argsort(-row)[:3].tolist()
        assert [value for _, value in entry.top] == pytest.approx(np.sort(row)[::-1][:3].tolist(), abs=1e-4)


def test_logprobs_are_given_only_when_asked_for(tiny: Engine) -> None:
    assert plain(tiny).logprobs is None
    assert [entry.top for entry in plain(tiny, logprobs=0, max_tokens=2).logprobs or ()] == [[], []]


def test_logits_have_one_row_for_each_token(tiny: Engine) -> None:
    """More rows than one step computes, and the last of them what generation sees."""
    rows = tiny.logits([7] * 100)
    assert (rows.shape, rows.dtype) == ((100, N_VOCAB), np.float32)
    np.testing.assert_allclose(tiny.logits([7] * 40), rows[:40], atol=1e-4)
    again = tiny.logits([7] * 100)
    np.testing.assert_allclose(again, rows, atol=1e-4)
    rows[:] = 0  # the caller's own array
    np.testing.assert_allclose(tiny.logits([7] * 100), again, atol=1e-4)


# -- text --------------------------------------------------------------------------------------------------------------


def test_a_stop_text_is_found_across_tokens_and_cut(story: Engine) -> None:
    whole = story.generate("Once upon a time", greedy(max_tokens=40))
    middle = len(whole.text) // 2
    stop = whole.text[middle - 4 : middle + 4]
    cut = story.generate("Once upon a time", greedy(max_tokens=40, stop=(stop, "\0")))
    assert cut.finish_reason == "stop"
    assert cut.text == whole.text[: whole.text.index(stop)]
    assert cut.tokens == whole.tokens[: len(cut.tokens)]
    assert stop in story.detokenize(cut.tokens)
    assert stop not in story.detokenize(cut.tokens[:-1])


def test_the_start_of_a_stop_text_that_does_not_come_is_delivered(story: Engine) -> None:
    whole = story.generate("Once upon a time", greedy(max_tokens=10))
    held = story.generate("Once upon a time", greedy(max_tokens=10, stop=(whole.text[-3:] + "\0",)))
    assert (held.text, held.finish_reason) == (whole.text, "length")


def test_chunks_add_up_to_the_completion(story: Engine) -> None:
    params = SamplingParams(seed=5, max_tokens=30, logprobs=2, stop=("zzz",))
    whole, chunks = story.generate("The fox", params), list(story.stream("The fox", params))
    assert "".join(chunk.text for chunk in chunks) == whole.text
    assert tuple(token for chunk in chunks for token in chunk.tokens) == whole.tokens
    assert same_logprobs([entry for chunk in chunks for entry in chunk.logprobs or ()], whole.logprobs or ())
    assert [chunk.finish_reason for chunk in chunks] == [None] * (len(chunks) - 1) + [whole.finish_reason]
    assert [chunk.usage is not None for chunk in chunks] == [False] * (len(chunks) - 1) + [True]


@pytest.mark.parametrize("character", ["é", "€", "😀"])
def test_bytes_of_one_character_over_several_tokens_are_delivered_whole(tiny: Engine, character: str) -> None:
    """The tiny vocabulary spells by bytes: biases and a penalty force those of a character, one after the other."""
    ids = tiny.tokenize(character, add_special=False)
    assert len(ids) == len(set(ids)) == len(character.encode())
    falling = {token: 1e6 * (len(ids) - place) for place, token in enumerate(ids)}
    spelling = greedy(logit_bias=falling, presence_penalty=1e6 * (len(ids) - 0.5), max_tokens=len(ids))
    chunks = list(tiny.stream([BOS], spelling))
    assert [token for chunk in chunks for token in chunk.tokens] == ids
    assert [chunk.text for chunk in chunks if chunk.text] == [character]
    cut = tiny.generate([BOS], replace(spelling, max_tokens=len(ids) - 1))
    assert cut.text == "\ufffd"


def test_usage_counts_and_times(tiny: Engine) -> None:
    usage = tiny.generate(PROMPT, greedy(logit_bias=NO_END), cache=False).usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens) == (5, 12, 0)
    assert (usage.dropped_prompt_tokens, usage.shifted_tokens, usage.preemptions) == (0, 0, 0)
    assert min(usage.queue_seconds, usage.prompt_seconds, usage.completion_seconds) >= 0
    plain(tiny)
    assert plain(tiny).usage.cached_tokens == len(PROMPT) - 1


# -- errors ------------------------------------------------------------------------------------------------------------

BAD_PROMPTS: list[tuple[Any, type[EngineError], str]] = [
    ([], ConfigError, "prompt is empty"),
    (np.array([], dtype=np.int64), ConfigError, "prompt is empty"),
    ([1] * 129, ContextOverflowError, "129 tokens, but num_ctx is 128"),
    ([N_VOCAB], TokenizerError, "token 320 is not in the vocabulary"),
    ([1, -1], TokenizerError, "token -1"),
    ([2**70], TokenizerError, "vocabulary"),
    (b"text", ConfigError, "str or a sequence of token ids, got bytes"),
    (bytearray(b"text"), ConfigError, "got bytearray"),
    (None, ConfigError, "got NoneType"),
    (7, ConfigError, "got int"),
    ({1, 2}, ConfigError, "got set"),
    (iter([1, 2]), ConfigError, "iterator"),
    ([1.0], ConfigError, "whole numbers"),
    ([True], ConfigError, "whole numbers"),
    ((1, "a"), ConfigError, r"\[1\] of this tuple is a str"),
    (np.array([1.5]), ConfigError, "whole numbers"),
    (np.array([[1, 2]]), ConfigError, "whole numbers"),
    ("lone \ud800 surrogate", TokenizerError, "surrogate"),
]


@pytest.mark.parametrize(("prompt", "error", "told"), BAD_PROMPTS, ids=lambda v: "" if isinstance(v, type) else None)
@pytest.mark.parametrize("call", ["generate", "stream", "logits"])
def test_bad_prompts_raise_at_once(tiny: Engine, call: str, prompt: Any, error: type[EngineError], told: str) -> None:
    with pytest.raises(error, match=told):
        getattr(tiny, call)(prompt)


def test_a_list_of_prompts_is_answered_by_calls_that_can(tiny: Engine) -> None:
    prompts = [PROMPT, [9, 9], PROMPT[:2]]
    found = tiny.generate(prompts, greedy(logit_bias=NO_END))
    expected = [tiny.generate(prompt, greedy(logit_bias=NO_END)).tokens for prompt in prompts]
    assert [answer.tokens for answer in found] == expected
    texts = [tiny.generate(text, greedy()).text for text in ("a", "b")]
    assert [answer.text for answer in tiny.generate(["a", "b"], greedy())] == texts
    assert [answer.text for answer in tiny.generate(("a",), greedy())] == [tiny.generate("a", greedy()).text]
    for call in (tiny.stream, tiny.logits, tiny.submit):
        with pytest.raises(ConfigError, match="whole numbers"):
            call(["a"])  # type: ignore[operator]
    with pytest.raises(TokenizerError, match=r"^prompts\[1\]: token 320"):
        tiny.generate([PROMPT, [N_VOCAB]], greedy())
    with pytest.raises(ConfigError, match=r"^prompts\[1\]: the prompt is empty") as told:
        tiny.generate([PROMPT, []], greedy())
    assert told.value.text_number == 1


def test_options_of_a_request(tiny: Engine) -> None:
    with pytest.raises(ConfigError, match="num_keep"):
        tiny.generate(PROMPT, num_keep=-1)
    with pytest.raises(TypeError, match="did you mean num_keep"):
        tiny.generate(PROMPT, keep=4)  # type: ignore[call-overload]
    with pytest.raises(ContextOverflowError, match="num_keep is 0 to 127"):
        tiny.generate(PROMPT, on_overflow="shift", num_keep=128)


@pytest.mark.parametrize("num_keep", [0, 5])
def test_a_prompt_that_is_too_long_may_be_truncated(tiny: Engine, num_keep: int) -> None:
    """It is answered as what is left of it, and the result says how much is not."""
    prompt = [int(token) for token in np.random.default_rng(3).integers(0, 300, 150)]
    for max_tokens, room in ((12, 12), (100, 64), (None, 32)):
        params = greedy(max_tokens=max_tokens, logit_bias=NO_END)
        found = tiny.generate(prompt, params, on_overflow="truncate", num_keep=num_keep)
        assert (len(found.tokens), found.finish_reason) == (room, "length")
        assert (found.usage.prompt_tokens, found.usage.dropped_prompt_tokens) == (150, 22 + room)
        left = prompt[:num_keep] + prompt[22 + room + num_keep :]
        assert found.tokens == tiny.generate(left, params).tokens
    shifted = tiny.generate(prompt, greedy(max_tokens=1), on_overflow="shift", num_keep=num_keep)
    left = prompt[:num_keep] + prompt[22 + num_keep :]
    assert shifted.tokens == (int(tiny.logits(left)[-1].argmax()),)


def test_an_answer_may_go_on_beyond_the_context(tiny: Engine) -> None:
    found = tiny.generate(PROMPT, greedy(logit_bias=NO_END, max_tokens=300), on_overflow="shift", num_keep=2)
    assert (len(found.tokens), found.finish_reason) == (300, "length")
    assert found.tokens[:123] == plain(tiny, max_tokens=None).tokens
    # Of 128, 63 of the 126 that are not kept leave at a time.
    assert found.usage.shifted_tokens == 63 * -(-(5 + 300 - 1 - 128) // 63)
    assert tiny.generate(PROMPT, greedy(logit_bias=NO_END, max_tokens=300), on_overflow="shift", num_keep=2,
                         cache=False).tokens == found.tokens  # fmt: skip


def test_other_arguments_of_the_wrong_kind(tiny: Engine) -> None:
    with pytest.raises(ConfigError, match=r"params are SamplingParams, got dict.*; write SamplingParams\(\*\*params\)"):
        tiny.generate(PROMPT, {"temperature": 0})  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=f"names token {N_VOCAB}"):
        tiny.generate(PROMPT, SamplingParams(logit_bias={N_VOCAB: 1.0}))
    with pytest.raises(TokenizerError):
        tiny.detokenize([N_VOCAB])
    with pytest.raises(TokenizerError):
        tiny.tokenize(7)  # type: ignore[arg-type]


def test_when_every_token_is_banned(tiny: Engine) -> None:
    everything = dict.fromkeys(range(N_VOCAB), float("-inf"))
    with pytest.raises(SamplingError, match="-inf"):
        tiny.generate(PROMPT, greedy(logit_bias=everything))
    assert plain(tiny).tokens


@pytest.mark.parametrize("flash", [True, False], ids=["flash", "permuted"])
def test_nan_ends_its_own_request_only(tmp_path: Path, flash: bool) -> None:
    """One token's embedding is NaN; what it leaves in the cache must not reach the next request."""
    table = np.random.default_rng(1).standard_normal((N_VOCAB, 64)).astype(np.float32)
    table[9] = np.nan
    output = np.nan_to_num(table)
    path = write_tiny_llama(tmp_path / "nan.gguf", tensors={"token_embd.weight": table, "output.weight": output}).path
    with Engine(path, num_ctx=128, parallel=1, threads=1, flash_attention=flash) as engine:
        expected = plain(engine).tokens
        for bad in ([9] * 100, [*PROMPT, 9]):
            with pytest.raises(SamplingError, match="NaN"):
                engine.generate(bad)
            with pytest.raises(SamplingError, match="NaN"):
                engine.score(bad, [[5, 6], [7]])
            with pytest.raises(SamplingError, match="NaN"):
                engine.generate(bad, greedy(prompt_logprobs=1))
            assert np.isnan(engine.logits(bad)[-1]).all()
            assert engine.generate(bad, greedy(max_tokens=0)).tokens == ()
            assert plain(engine).tokens == expected
            chunks = engine.stream(bad)
            with pytest.raises(SamplingError):
                next(chunks)
            assert list(chunks) == []
            assert not np.isnan(engine.logits(PROMPT)).any()


# -- facts -------------------------------------------------------------------------------------------------------------


def test_info_says_what_the_file_says(tiny: Engine) -> None:
    info = tiny.info
    assert (info.architecture, info.name, info.n_vocab, info.context_length) == ("llama", "tiny", N_VOCAB, 512)
    assert info.file_bytes == Path(info.path).stat().st_size
    assert 0 < 4 * info.n_parameters < info.file_bytes
    assert info.threads == 1
    assert tiny.metrics.threads == 1
    assert info.num_ctx == 128
    assert info.flash_attention is True
    assert info.metadata["llama.block_count"] == 1
    assert tiny.config.num_ctx == 128


def test_the_repr_of_what_a_model_says_is_short(story: Engine) -> None:
    """Not so its metadata, which hold the vocabulary."""
    assert len(story.info.metadata["tokenizer.ggml.tokens"]) > 1000  # type: ignore[arg-type]
    assert repr(story.info).startswith("ModelInfo(path=")
    assert len(repr(story.info)) < 500 + len(story.info.path)


@pytest.mark.cpu_only
def test_memory_is_accounted_for(tiny: Engine) -> None:
    report = tiny.memory
    (cpu,) = [d for d in report.devices if d.device == "CPU"]
    assert cpu.cache == 2 * 256 * 2 * 16 * 4
    assert cpu.mapped + cpu.weights == sum(report.layers.values())
    assert cpu.graph > 0
    assert set(report.layers) == {"input", "blk.0", "output"}
    assert cpu.work > 0
    assert cpu.allocated == cpu.weights + cpu.repacked + cpu.cache + cpu.graph + cpu.work
    assert report.total == sum(d.allocated + d.mapped for d in report.devices)
    assert "CPU" in str(report)


def test_devices_are_known_without_a_model() -> None:
    assert "cpu" in {device.kind for device in Engine.devices()}


def test_a_chunk_is_a_plain_value() -> None:
    assert Chunk("a") == Chunk("a")
    with pytest.raises(AttributeError):
        Chunk("a").texts = "b"  # type: ignore[attr-defined]


def test_a_long_list_is_one_request_to_the_queue(tmp_path: Path) -> None:
    path = write_tiny_llama(tmp_path / "tiny.gguf", n_layer=1).path
    with Engine(path, num_ctx=64, parallel=2, max_queue=1, threads=1) as engine:
        found = engine.generate([PROMPT] * 20, greedy(max_tokens=2))
        assert [answer.tokens for answer in found] == [found[0].tokens] * 20
        with pytest.raises(TokenizerError):
            engine.generate([PROMPT, [N_VOCAB]], greedy())
        assert engine.metrics.queued == 0


def test_prefixes_are_shared_with_the_same_salt_only(tmp_path: Path) -> None:
    path = write_tiny_llama(tmp_path / "tiny.gguf", n_layer=1).path
    prompt, params = list(range(1, 40)), SamplingParams(temperature=0, max_tokens=4)
    with Engine(path, num_ctx=64, parallel=2, threads=1, verify=True) as engine:
        expected = engine.generate(prompt, params, cache_salt="alice").tokens

        def cached(**options: str) -> int:
            answer = engine.generate(prompt, params, **options)  # type: ignore[arg-type]
            assert answer.tokens == expected
            return answer.usage.cached_tokens

        assert cached(cache_salt="bob") == 0
        assert cached() == 0
        assert cached(cache_salt="alice") == len(prompt) - 1
        assert cached(cache_salt="bob") == len(prompt) - 1
        with engine.session() as session:
            session.append(prompt, cache_salt="eve")
            assert session.generate(params, cache_salt="eve").usage.cached_tokens == len(prompt) - 1
            session.save(tmp_path / "session")
            with session.fork() as fork:
                assert fork.generate(params, cache_salt="eve").usage.cached_tokens > 0
        assert cached() == len(prompt) - 1
        with engine.load_session(tmp_path / "session") as loaded:
            assert loaded.generate(params, cache_salt="mallory").usage.cached_tokens == 0
        with pytest.raises(ConfigError, match="cache_salt"):
            engine.generate(prompt, cache_salt=7)  # type: ignore[arg-type]
