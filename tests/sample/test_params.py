"""SamplingParams: what is accepted, what it becomes, and what the refusals say."""

from __future__ import annotations

import copy
import math
import pickle
from dataclasses import FrozenInstanceError, asdict, fields, replace
from typing import Any

import numpy as np
import pytest

from ollama_engine.errors import ConfigError
from ollama_engine.sample import LogitBias, SamplingParams

ACCEPTED = [
    ("temperature", 0, 0.0),
    ("temperature", np.float32(0.5), 0.5),
    ("top_k", np.int64(3), 3),
    ("top_p", 1, 1.0),
    ("top_p", 0, 0.0),
    ("seed", 2**64 - 1, 2**64 - 1),
    ("seed", None, None),
    ("max_tokens", 0, 0),
    ("stop", "###", ("###",)),
    ("stop", None, ()),
    ("logit_bias", None, {}),
    ("stop", ["a", "b"], ("a", "b")),
    ("stop", (text for text in ("a", "b")), ("a", "b")),
    ("repeat_last_n", -1, -1),
    ("top_n_sigma", -1, -1.0),
    ("adaptive_target", 0, 0.0),
    ("dry_sequence_breakers", "###", ("###",)),
    ("dry_sequence_breakers", [], ()),
    ("mirostat", 2, 2),
    ("samplers", "top_k;temperature", ("top_k", "temperature")),
    ("samplers", ["min_p", "top_p;xtc"], ("min_p", "top_p", "xtc")),
    ("samplers", (), ()),
    ("logit_bias", {np.int64(3): 1}, {3: 1.0}),
    ("logit_bias", {3: -math.inf}, {3: -math.inf}),
    ("logprobs", 0, 0),
]

REFUSED: list[tuple[str, Any, str]] = [
    ("temperature", -0.1, ">= 0, got -0.1"),
    ("temperature", math.nan, "finite"),
    ("temperature", math.inf, "finite"),
    ("temperature", "0.8", "got '0.8'"),
    ("temperature", True, "got True"),
    ("top_k", -1, "from 0 to"),
    ("top_k", 1.0, "integer"),
    ("top_k", True, "integer"),
    ("top_k", 2**31, "integer"),
    ("top_p", 1.01, "from 0 to 1"),
    ("min_p", -0.01, "from 0 to 1"),
    ("typical_p", 1.5, "from 0 to 1"),
    ("top_n_sigma", math.inf, "a finite number, got inf"),
    ("xtc_probability", 2, "from 0 to 1"),
    ("xtc_threshold", -1, "from 0 to 1"),
    ("min_keep", -1, "from 0 to"),
    ("dynatemp_range", -0.5, ">= 0"),
    ("dynatemp_exponent", -1, ">= 0"),
    ("dry_multiplier", -1, "from 0 to"),
    ("dry_base", 0.9, "from 1 to"),
    ("dry_allowed_length", -1, "from 0 to"),
    ("dry_penalty_last_n", -2, "from -1"),
    ("dry_sequence_breakers", ["\n", ""], "non-empty"),
    ("mirostat", 3, "from 0 to 2"),
    ("mirostat_tau", -1, "from 0 to"),
    ("mirostat_eta", math.nan, "finite"),
    ("adaptive_target", 1.5, "a finite number <= 1, got 1.5"),
    ("adaptive_decay", 1.0, "from 0 to 0.99"),
    ("samplers", "top_k;topp", "got 'topp'"),
    ("samplers", "top_k;min_p;top_k", "names 'top_k' twice"),
    ("samplers", "adaptive_p;top_k", "adaptive_p at the end"),
    ("samplers", 7, "several texts, got 7"),
    ("seed", -1, "from 0 to 18446744073709551615"),
    ("seed", 2**64, "got 18446744073709551616"),
    ("max_tokens", -2, "integer"),
    ("stop", "", "non-empty"),
    ("stop", ["a", ""], "non-empty"),
    ("stop", [1], "got 1"),
    ("stop", 7, "got 7"),
    ("stop", b"end", "got 101"),
    ("repeat_penalty", 0, "got 0"),
    ("repeat_penalty", math.inf, "finite"),
    ("repeat_last_n", -2, "from -1"),
    ("presence_penalty", math.nan, "finite"),
    ("frequency_penalty", 2e9, "from -1000000000.0 to 1000000000.0, got 2"),
    ("logit_bias", {-1: 0.0}, "got -1"),
    ("logit_bias", {"1": 0.0}, "got '1'"),
    ("logit_bias", {1: math.nan}, "got nan"),
    ("logit_bias", {1: math.inf}, "got inf"),
    ("logit_bias", {1: "much"}, "got 'much'"),
    ("logit_bias", [(1, 2.0)], "must map"),
    ("logprobs", -1, "from 0"),
]


def test_defaults() -> None:
    assert asdict(SamplingParams()) == {
        "temperature": 0.8,
        "top_k": 40,
        "top_p": 0.9,
        "min_p": 0.0,
        "typical_p": 1.0,
        "top_n_sigma": -1.0,
        "xtc_probability": 0.0,
        "xtc_threshold": 0.1,
        "min_keep": 0,
        "dynatemp_range": 0.0,
        "dynatemp_exponent": 1.0,
        "dry_multiplier": 0.0,
        "dry_base": 1.75,
        "dry_allowed_length": 2,
        "dry_penalty_last_n": -1,
        "dry_sequence_breakers": ("\n", ":", '"', "*"),
        "mirostat": 0,
        "mirostat_tau": 5.0,
        "mirostat_eta": 0.1,
        "adaptive_target": -1.0,
        "adaptive_decay": 0.9,
        "samplers": (
            "penalties",
            "dry",
            "top_n_sigma",
            "top_k",
            "temperature",
            "typ_p",
            "top_p",
            "min_p",
            "xtc",
            "adaptive_p",
        ),
        "seed": None,
        "max_tokens": None,
        "stop": (),
        "repeat_penalty": 1.0,
        "repeat_last_n": 64,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "logit_bias": {},
        "logprobs": None,
        "prompt_logprobs": None,
    }


@pytest.mark.parametrize(("name", "given", "kept"), ACCEPTED)
def test_accepted(name: str, given: Any, kept: Any) -> None:
    value = getattr(SamplingParams(**{name: given}), name)
    assert value == kept
    assert type(value) is type(kept) or name == "logit_bias"


@pytest.mark.parametrize(("name", "given", "message"), REFUSED)
def test_refused(name: str, given: Any, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        SamplingParams(**{name: given})
    assert name in str(caught.value)
    assert message in str(caught.value)


def test_every_field_explains_itself_with_its_range() -> None:
    for spec in fields(SamplingParams):
        assert spec.metadata["help"].endswith("]"), spec.name


def test_frozen_hashable_and_copyable() -> None:
    biases = {1: 2.0}
    params = SamplingParams(stop="x", logit_bias=biases)
    biases[1] = 9.0
    assert params.logit_bias == {1: 2.0}
    with pytest.raises(FrozenInstanceError):
        params.top_k = 1  # type: ignore[misc]
    with pytest.raises(TypeError):
        params.logit_bias[1] = 3.0  # type: ignore[index]
    for twin in (pickle.loads(pickle.dumps(params)), copy.deepcopy(params), replace(params)):
        assert twin == params
        assert hash(twin) == hash(params)
    assert replace(params, stop=("x", "y")) != params


def test_logit_bias_is_a_mapping() -> None:
    bias = LogitBias([(2, 1.5), (1, -math.inf)])
    assert list(bias) == [2, 1]
    assert len(bias) == 2
    assert bias[2] == 1.5
    assert 3 not in bias
    assert repr(bias) == "{2: 1.5, 1: -inf}"


def test_mirostat_and_adaptive_p_exclude_each_other() -> None:
    with pytest.raises(ConfigError, match="mirostat and adaptive_target both choose the token"):
        SamplingParams(mirostat=2, adaptive_target=0.3)


@pytest.mark.parametrize("name", ["temperature", "top_p", "repeat_penalty"])
def test_a_number_too_large_for_a_float(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} must be a finite number"):
        SamplingParams(**{name: 10**400})


@pytest.mark.parametrize("stop", [{"a": 1}, ["\ud800"], ["a", "b\udcff"]])
def test_stop_texts_that_no_text_holds(stop: object) -> None:
    with pytest.raises(ConfigError, match="stop must"):
        SamplingParams(stop=stop)  # type: ignore[arg-type]
