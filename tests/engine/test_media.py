"""Media from prompts to batches, with a model that reads them: groups stay whole, prefixes keep their identity."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ollama_engine import Engine, SamplingParams
from ollama_engine.errors import ConfigError, ContextOverflowError, ImageError, TokenizerError, UnsupportedInputError
from ollama_engine.segments import Media, Segment, Text, Tokens
from tests.support.media_model import BROKEN, REFUSED, CrossLlama, MediaLlama, media_llama, picture, seen_as
from tests.support.suite import slow_except
from tests.support.tiny import write_tiny_llama
from tests.support.tiny_answers import BOS, EOS, EOT, N_VOCAB, NO_END

CAT, DOG = bytes(range(40, 52)), bytes(range(60, 72))
BEFORE, AFTER = [5, 77, 200, 31, 8], [60, 61, 7, 9]
PATIENCE = 50

KINDS: dict[str, dict[str, Any]] = {
    "flash": {},
    "permuted": {"flash_attention": "off"},
    "q8_0": {"kv_cache_type": "q8_0"},
    "window": {"window": 8},
    "window permuted": {"window": 8, "flash_attention": "off"},
    "bidirectional": {"bidirectional": True},
    "bidirectional window": {"bidirectional": True, "window": 20},
    "apart": {"groups_per_batch": 1},
    "axes": {"position_axes": 3},
    "wide": {"position_axes": 3, "wide": True},
    "loose": {"grouped": False},
    "cross": {"cls": CrossLlama, "groups_per_batch": 2},
    "cross permuted": {"cls": CrossLlama, "groups_per_batch": 1, "flash_attention": "off"},
}
ENGINE_OPTIONS = (
    "flash_attention",
    "kv_cache_type",
    "num_ctx",
    "batch_size",
    "parallel",
    "image_cache_bytes",
    "prefix_store",
    "verify",
)
QUICK_KINDS = ("flash", "window permuted", "bidirectional", "apart", "wide", "cross")
CAUSAL = ("flash", "permuted", "q8_0", "window", "window permuted", "apart", "axes", "loose")
"""Kinds that see an image as the tokens that say the same."""


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_tiny_llama(tmp_path_factory.mktemp("tiny") / "tiny.gguf", n_layer=2, n_embd=128, seed=4).path


def open_engine(stack: ExitStack, path: str, kind: str, **more: Any) -> Engine:
    options = {"num_ctx": 128, "parallel": 3, "batch_size": 16, **KINDS[kind], **more}
    own = {name: options.pop(name) for name in ENGINE_OPTIONS if name in options}
    stack.enter_context(media_llama(**options))
    engine = stack.enter_context(Engine(path, **{"threads": 1, "verify": True, **own}))
    MediaLlama.encoded.clear()  # the largest image, whose memory was reserved
    return engine


@pytest.fixture(params=slow_except(KINDS, *QUICK_KINDS))
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def engine(path: str, kind: str) -> Iterator[Engine]:
    with ExitStack() as stack:
        yield open_engine(stack, path, kind)


def greedy(n: int = 8, **fields: Any) -> SamplingParams:
    # Penalties look back on text, not on images.
    return SamplingParams(temperature=0, max_tokens=n, logit_bias=NO_END, repeat_penalty=1.0, **fields)


def prompt(*parts: list[int] | bytes) -> list[Segment]:
    return [Media(picture(part)) if isinstance(part, bytes) else Tokens(part) for part in parts]


def as_tokens(*parts: list[int] | bytes) -> list[int]:
    """The tokens that say the same as a prompt."""
    begin = [BOS] if isinstance(parts[0], bytes) else []
    return begin + [token for part in parts for token in (seen_as(part) if isinstance(part, bytes) else part)]


def lone(engine: Engine, segments: list[Segment], n: int = 8) -> tuple[int, ...]:
    """What a prompt gives without any help of the cache."""
    return engine.generate(segments, greedy(n), cache=False).tokens


# -- what is computed --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", slow_except(CAUSAL, "flash", "window permuted", "loose"), indirect=True)
def test_an_image_is_what_its_embeddings_are(engine: Engine) -> None:
    for parts in ([BEFORE, CAT, AFTER], [CAT], [CAT, DOG], [BEFORE, CAT, AFTER, DOG, [1]]):
        expected = engine.logits(as_tokens(*parts))[-1]
        found = engine.generate(prompt(*parts), greedy(6), cache=False)
        assert found.tokens == engine.generate(as_tokens(*parts), greedy(6), cache=False).tokens
        assert found.tokens[0] == int(np.argmax(np.where(np.isin(np.arange(N_VOCAB), [EOS, EOT]), -np.inf, expected)))
        assert found.usage.prompt_tokens == len(as_tokens(*parts))


def test_other_images_give_other_answers(engine: Engine) -> None:
    answers = {lone(engine, prompt(BEFORE, image, AFTER)) for image in (CAT, DOG, CAT[::-1])}
    assert len(answers) > 1


@pytest.mark.parametrize("kind", ["bidirectional", "bidirectional window"], indirect=True)
def test_inputs_of_one_image_see_each_other(engine: Engine) -> None:
    """And nothing else of what comes later: the text is causal, and another image apart."""
    causal = engine.logits(as_tokens(BEFORE, CAT, AFTER))
    found = engine.logits(prompt(BEFORE, CAT, AFTER))
    n = len(BEFORE) + 1
    np.testing.assert_allclose(found[:n], causal[:n], atol=1e-4)
    assert np.abs(found[n] - causal[n]).max() > 1e-2  # the first input of the image sees the last one
    longer = engine.logits(prompt(BEFORE, CAT, AFTER, DOG))
    np.testing.assert_allclose(longer[: len(found)], found, atol=1e-4)


@pytest.mark.parametrize("kind", ["wide"], indirect=True)
def test_an_image_moves_later_positions_by_what_it_says(engine: Engine) -> None:
    """It takes one position on the first axis, so what follows an image of any size has the same positions."""
    text = engine.logits(as_tokens(BEFORE, [10]))
    found = engine.logits(prompt(BEFORE, CAT, AFTER))
    np.testing.assert_allclose(found[: len(text)], text, atol=1e-4)
    plain = engine.logits(as_tokens(BEFORE, CAT, AFTER))
    assert np.abs(found[-1] - plain[-1]).max() > 1e-2
    # Computed whole, in pieces, and after a cached prefix.
    whole = lone(engine, prompt(BEFORE, CAT, AFTER, DOG, AFTER))
    engine.generate(prompt(BEFORE, CAT, AFTER, DOG), greedy(1))
    again = engine.generate(prompt(BEFORE, CAT, AFTER, DOG, AFTER), greedy())
    assert (again.tokens, again.usage.cached_tokens > len(BEFORE) + len(CAT)) == (whole, True)


# -- who shares what ---------------------------------------------------------------------------------------------------


def test_an_image_is_reused_by_its_content(engine: Engine) -> None:
    first = engine.generate(prompt(BEFORE, CAT, AFTER), greedy())
    again = engine.generate(prompt(BEFORE, CAT, AFTER, [3]), greedy())
    assert again.usage.cached_tokens == first.usage.prompt_tokens
    assert again.tokens == lone(engine, prompt(BEFORE, CAT, AFTER, [3]))
    other = engine.generate(prompt(BEFORE, DOG, AFTER, [3]), greedy())
    # The token that begins an image is the same for both.
    assert len(BEFORE) <= other.usage.cached_tokens <= len(BEFORE) + 1
    assert other.tokens == lone(engine, prompt(BEFORE, DOG, AFTER, [3]))


def test_images_beside_each_other(engine: Engine) -> None:
    """Of several callers at once, two in one prompt, the same one twice."""
    prompts = [
        prompt(BEFORE, CAT, AFTER), prompt(DOG, CAT), prompt(CAT, CAT, [1]), prompt(BEFORE, DOG, CAT, AFTER),
        [Tokens(BEFORE)], prompt(BEFORE, CAT, AFTER, [8]),
    ]  # fmt: skip
    expected = [lone(engine, given) for given in prompts]
    for _ in range(2):
        assert [answer.tokens for answer in engine.generate(prompts, greedy())] == expected
    requests = [engine.submit(given, greedy()) for given in prompts * 2]
    assert [request.result(PATIENCE).tokens for request in requests] == expected * 2


def test_several_answers_and_forks(engine: Engine) -> None:
    given = prompt(BEFORE, CAT, AFTER)
    expected = lone(engine, given, 12)
    assert {answer.tokens for answer in engine.generate(given, greedy(12), n=3)} == {expected}
    request = engine.submit(given, greedy(12))
    next(request)
    fork = engine.fork(request)
    taken = fork.prompt[len(request.prompt) :]
    assert taken + fork.result(PATIENCE).tokens[: 12 - len(taken)] == expected
    assert request.result(PATIENCE).tokens == expected


# -- where there is too little room ------------------------------------------------------------------------------------


def test_truncation_drops_images_whole(engine: Engine) -> None:
    given = prompt(BEFORE, *[CAT, DOG] * 24, AFTER)
    answer = engine.generate(given, greedy(4), on_overflow="truncate", num_keep=2)
    dropped = answer.usage.dropped_prompt_tokens
    per_image = answer.usage.prompt_tokens - len(BEFORE) - len(AFTER)
    assert 0 < dropped < answer.usage.prompt_tokens
    with pytest.raises(ContextOverflowError):
        engine.generate(given if per_image > 128 else given * 4, greedy(4))


def test_a_shift_drops_images_whole(engine: Engine) -> None:
    """The answer goes on beyond the context, and once more for another request of the same prompt."""
    given = prompt(BEFORE, CAT, AFTER, DOG, AFTER)
    first = engine.generate(given, greedy(200), on_overflow="shift", num_keep=1)
    assert first.usage.shifted_tokens > 0
    assert first.finish_reason == "length"
    assert len(first.tokens) == 200
    engine.generate([1, 2], greedy(1))
    assert (
        engine.generate(given, greedy(200), on_overflow="shift", num_keep=1, cache=False).tokens[:50]
        == first.tokens[:50]
    )


@pytest.mark.parametrize("kind", ["flash", "bidirectional"], indirect=True)
def test_num_keep_within_an_image_is_refused_or_lowered(engine: Engine) -> None:
    """A shift cannot keep half of an image."""
    keep = len(BEFORE) + 4
    answer = engine.generate(prompt(BEFORE, CAT, AFTER), greedy(200), on_overflow="shift", num_keep=keep)
    assert answer.usage.shifted_tokens > 0


@pytest.mark.parametrize("kind", ["flash"], indirect=True)
def test_an_image_larger_than_any_batch_is_refused(engine: Engine) -> None:
    large, too_large = bytes(range(100, 122)), bytes(range(100, 126))
    assert engine.config.batch_size < len(large)
    assert lone(engine, prompt(BEFORE, large)) == lone(engine, [Tokens(as_tokens(BEFORE, large))])
    with pytest.raises(ImageError, match=r"26 inputs of the prompt belong together .* a batch has 24 at most"):
        engine.generate(prompt(BEFORE, too_large))


def test_preempted_requests_compute_their_images_again(path: str, kind: str) -> None:
    with ExitStack() as stack:
        engine = open_engine(stack, path, kind, num_ctx=100, parallel=2)
        prompts = [prompt([i], CAT, AFTER, DOG, [i]) for i in range(1, 7)]
        expected = [lone(engine, given, 60) for given in prompts]
        requests = [engine.submit(given, greedy(60)) for given in prompts]
        assert [request.result(PATIENCE).tokens for request in requests] == expected


# -- sessions ----------------------------------------------------------------------------------------------------------


def test_sessions_hold_images(engine: Engine) -> None:
    expected = lone(engine, prompt(BEFORE, CAT, AFTER, [1], DOG, [2]))
    with engine.session() as session:
        session.append(prompt(BEFORE, CAT, AFTER))
        n = len(session)
        session.append([1])
        session.append(prompt(DOG))
        assert session.text == engine.detokenize([*BEFORE, 10, 12, *AFTER, 1, 10, 12])
        session.append([2])
        with session.fork() as fork:
            assert fork.generate(greedy()).tokens == expected
        answer = session.generate(greedy())
        assert (answer.tokens, answer.usage.cached_tokens) == (expected, len(session) - len(expected) - 1)
        session.rewind(len(session) - n)
        assert session.generate(greedy()).tokens == lone(engine, prompt(BEFORE, CAT, AFTER))


@pytest.mark.parametrize("kind", ["flash", "permuted", "window", "bidirectional"], indirect=True)
def test_a_session_is_not_rewound_into_an_image(engine: Engine) -> None:
    with engine.session() as session:
        session.append(prompt(BEFORE, CAT, [1, 2]))
        before = session.tokens
        with pytest.raises(ConfigError, match=r"cut through an image .*; drop 15 or 3"):
            session.rewind(7)
        assert session.tokens == before
        session.rewind(15)
        assert len(session) == len(BEFORE) + 1


def test_session_files_hold_images(engine: Engine, tmp_path: Path, path: str, kind: str) -> None:
    file = tmp_path / "session"
    expected = lone(engine, prompt(BEFORE, CAT, AFTER, DOG, [3]))
    with engine.session() as session:
        session.append(prompt(BEFORE, CAT, AFTER, DOG, [3]))
        session.save(file)
        tokens = session.tokens
    with engine.load_session(file) as loaded:
        assert loaded.tokens == tokens
        answer = loaded.generate(greedy())
        assert (answer.tokens, answer.usage.cached_tokens) == (expected, len(tokens) - 1)
    with engine.session() as other:  # a prompt finds what a file gave back
        other.append(prompt(BEFORE, CAT, AFTER, DOG, [3, 4]))
        assert other.generate(greedy()).tokens == lone(engine, prompt(BEFORE, CAT, AFTER, DOG, [3, 4]))
    with ExitStack() as stack:
        fresh = open_engine(stack, path, kind)
        with fresh.load_session(file) as again:
            assert again.generate(greedy()).tokens == expected


@pytest.mark.parametrize("kind", ["flash", "bidirectional", "wide"], indirect=True)
def test_a_session_of_another_cache_type_is_computed_again(
    engine: Engine, tmp_path: Path, path: str, kind: str
) -> None:
    """From the embeddings that its file has."""
    file = tmp_path / "session"
    with engine.session() as session:
        session.append(prompt(BEFORE, CAT, AFTER))
        session.save(file)
    with ExitStack() as stack:
        other = open_engine(stack, path, kind, kv_cache_type="f32")
        asked = len(MediaLlama.encoded)
        with other.load_session(file) as loaded:
            found = loaded.generate(greedy()).tokens
        assert len(MediaLlama.encoded) == asked
        assert found == lone(other, prompt(BEFORE, CAT, AFTER))


# -- what goes wrong ---------------------------------------------------------------------------------------------------


def test_an_image_that_cannot_be_computed_ends_its_request_alone(engine: Engine) -> None:
    expected = lone(engine, prompt(BEFORE, CAT, AFTER))
    requests = [engine.submit(prompt(BEFORE, image, AFTER), greedy()) for image in (CAT, BROKEN, CAT)]
    with pytest.raises(ImageError, match="the image is broken"):
        requests[1].result(PATIENCE)
    assert requests[0].result(PATIENCE).tokens == requests[2].result(PATIENCE).tokens == expected
    assert lone(engine, prompt(BEFORE, CAT, AFTER)) == expected


def test_what_is_refused(engine: Engine) -> None:
    with pytest.raises(ImageError, match="the image is empty: it has no bytes"):
        engine.generate([Media(b"")])
    with pytest.raises(ImageError, match="cannot take this image"):
        engine.generate(prompt(REFUSED))
    with pytest.raises(ConfigError, match="holds Text, Tokens and Media only, got a str"):
        engine.generate([Text("a"), "b"])  # type: ignore[list-item]
    with pytest.raises(TokenizerError, match="token 320"):
        engine.generate([Tokens([1, 320])])


def test_a_model_of_text_refuses_images(path: str) -> None:
    with Engine(path, num_ctx=64, threads=1) as engine, pytest.raises(UnsupportedInputError, match="reads text only"):
        engine.generate(prompt(BEFORE, CAT))


# -- text in segments --------------------------------------------------------------------------------------------------


def test_what_a_user_typed_is_no_control_token(path: str) -> None:
    with Engine(path, num_ctx=64, threads=1) as engine:
        typed = "a<|eot_id|>b"
        trusted, untrusted = (engine.submit([Text(typed, parse_special=on)], greedy(1)).prompt for on in (True, False))
        assert EOT in trusted
        assert EOT not in untrusted
        assert trusted == tuple(engine.tokenize(typed))
        assert untrusted == tuple(engine.tokenize(typed, parse_special=False))
        assert trusted[0] == untrusted[0] == BOS


def test_the_begin_token_comes_once(path: str) -> None:
    with Engine(path, num_ctx=64, threads=1) as engine:

        def ids(*segments: Segment) -> tuple[int, ...]:
            return engine.submit(list(segments), greedy(1)).prompt

        a, b = engine.tokenize("a", add_special=False), engine.tokenize("b", add_special=False)
        both = engine.tokenize("ab", add_special=False)
        assert ids(Text("a"), Text("b")) == (BOS, *both)  # one text, wherever it is cut
        assert ids(Text("<|begin_of_text|>a", parse_special=True), Text("b")) == (BOS, *both)
        assert ids(Text(""), Tokens(b)) == (BOS, *b)
        assert ids(Tokens(a), Text("b")) == (*a, *b)  # ids are taken as they are


def test_the_begin_token_comes_before_an_image(path: str) -> None:
    with ExitStack() as stack:
        engine = open_engine(stack, path, "flash")
        assert engine.submit([Media(picture(CAT)), Text("b")], greedy(1)).prompt[:2] == (BOS, 10)
