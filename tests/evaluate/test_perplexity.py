"""Perplexity: the rule of the chunks, the arithmetic against numpy, and a model against its own logits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from ollama_engine import Engine
from ollama_engine.config import EngineConfig
from ollama_engine.errors import ComputeError, ConfigError
from ollama_engine.evaluate.perplexity import Perplexity, chunk_logprobs, chunks, scored_from, token_logprobs
from ollama_engine.runner.load.loading import Loaded, load
from tests.support.tiny import write_tiny_llama

N_CTX = 40
CPU = {"threads": 1, "gpu_layers": 0, "kv_cache_type": "f32"}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_tiny_llama(tmp_path_factory.mktemp("tiny") / "tiny.gguf", n_layer=2, sliding_window=12).path


@pytest.fixture(scope="module", params=[512, 16, 7], ids="batch-{}".format)
def loaded(request: pytest.FixtureRequest, path: str) -> Iterator[Loaded]:
    config = EngineConfig(num_ctx=N_CTX, parallel=1, batch_size=request.param, **CPU)
    with closing(load(path, config, logit_rows=N_CTX - scored_from(N_CTX))) as parts:
        yield parts


def log_softmax(rows: np.ndarray) -> np.ndarray:
    wide = rows.astype(np.float64)
    return (
        wide
        - np.log(np.exp(wide - wide.max(axis=1, keepdims=True)).sum(axis=1, keepdims=True))
        - wide.max(axis=1, keepdims=True)
    )


# -- chunks ------------------------------------------------------------------------------------------------------------


def test_chunks_are_whole_contexts() -> None:
    ids = list(range(100, 135))
    assert chunks(ids, 10, None) == [ids[:10], ids[10:20], ids[20:30]]
    assert chunks(ids[:10], 10, None) == [ids[:10]]


def test_begin_takes_the_place_of_the_first_token() -> None:
    ids = list(range(100, 121))
    assert chunks(ids, 10, 7) == [[7, *ids[1:10]], [7, *ids[11:20]]]


@pytest.mark.parametrize(("n", "num_ctx", "message"), [(9, 10, "the text has 9 tokens"), (50, 7, "at least 8 tokens")])
def test_what_gives_no_chunk_is_refused(n: int, num_ctx: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        chunks([1] * n, num_ctx, None)


# -- arithmetic --------------------------------------------------------------------------------------------------------


def test_log_probabilities_are_those_of_numpy() -> None:
    rng = np.random.default_rng(1)
    rows = (rng.standard_normal((300, 4000)) * 20 + 500).astype(np.float32)
    rows[3, :100] = -np.inf
    tokens = rng.integers(0, 4000, 300).astype(np.int32)
    tokens[3] = 5
    expected = log_softmax(rows)[np.arange(300), tokens]
    assert expected[3] == -np.inf
    np.testing.assert_allclose(token_logprobs(rows, tokens), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_no_number_is_nan(bad: float) -> None:
    rows = np.zeros((2, 8), np.float32)
    rows[1, 3] = bad
    found = token_logprobs(rows, np.array([0, 0], np.int32))
    assert found[0] == pytest.approx(-np.log(8))
    assert np.isnan(found[1])


def test_value_and_error_are_those_of_numpy() -> None:
    logprobs = -np.random.default_rng(2).exponential(3.0, 1000)
    found = Perplexity().plus(logprobs[:10]).plus(logprobs[10:])
    assert found.n_scored == 1000
    assert found.value == pytest.approx(np.exp(-logprobs.mean()))
    assert found.error == pytest.approx(found.value * logprobs.std() / np.sqrt(999))


@pytest.mark.parametrize("logprobs", [[-1.0, -np.inf], [-1e6, -1e6]])
def test_what_is_too_large_is_infinite(logprobs: list[float]) -> None:
    found = Perplexity().plus(np.array(logprobs))
    assert (found.value, found.error) == (np.inf, np.inf)


# -- a model -----------------------------------------------------------------------------------------------------------


def test_a_model_scores_the_second_half_by_all_before(loaded: Loaded, path: str) -> None:
    """In one batch and in several; what is computed before leaves nothing behind."""
    rng = np.random.default_rng(3)
    texts = [[int(t) for t in rng.integers(0, 317, N_CTX)] for _ in range(2)]
    first = scored_from(N_CTX)
    assert first == 21
    with Engine(path, num_ctx=N_CTX, parallel=1, **CPU) as engine:
        for ids in texts:
            found = chunk_logprobs(loaded.executor, loaded.cache, ids)
            expected = log_softmax(engine.logits(ids))[np.arange(first - 1, N_CTX - 1), ids[first:]]
            np.testing.assert_allclose(found, expected, atol=1e-4)


def test_a_model_that_computes_nan_is_an_error(tmp_path: Path) -> None:
    tiny = write_tiny_llama(tmp_path / "good.gguf")
    weights = {name: values.copy() for name, values in tiny.weights.items()}
    weights["output_norm.weight"][0] = np.nan
    broken = write_tiny_llama(tmp_path / "bad.gguf", tensors=weights).path
    config = EngineConfig(num_ctx=16, parallel=1, **CPU)
    with closing(load(broken, config)) as parts, pytest.raises(ComputeError, match="computes NaN"):
        chunk_logprobs(parts.executor, parts.cache, [1] * 16)
