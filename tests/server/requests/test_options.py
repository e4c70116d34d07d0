"""Options of Modelfiles and requests: layers, defaults, values out of range."""

from __future__ import annotations

from typing import Any

import pytest

from ollama_engine.server.requests.options import read_options


def test_layers_of_options() -> None:
    options = read_options({"temperature": 1, "num_ctx": 10.9, "stop": "a"}, {"num_ctx": None, "top_k": 5.0})
    assert options.runner == {"num_ctx": 10}
    assert options.sampling == {"temperature": 1.0, "stop": ["a"], "top_k": 5}


def test_defaults_are_ollamas() -> None:
    params = read_options().params(4096, None)
    chosen = (params.temperature, params.top_k, params.top_p, params.min_p, params.repeat_penalty, params.repeat_last_n)
    assert chosen == (0.8, 40, 0.9, 0.0, 1.0, 64)
    assert (params.seed, params.max_tokens, params.logprobs) == (None, 40960, None)
    assert read_options().num_keep == 4


@pytest.mark.parametrize(("given", "name", "expected"), [
    ({"temperature": -1}, "temperature", 0), ({"top_p": 2}, "top_p", 1), ({"min_p": -0.5}, "min_p", 0),
    ({"top_k": -1}, "top_k", 0), ({"seed": -1}, "seed", None), ({"seed": 5}, "seed", 5),
    ({"num_predict": -2}, "max_tokens", 1280), ({"num_predict": 0}, "max_tokens", 1280),
    ({"num_predict": 9}, "max_tokens", 9), ({"repeat_last_n": -1}, "repeat_last_n", 128), ({"stop": ""}, "stop", ()),
    ({"repeat_penalty": 0}, "repeat_penalty", 1), ({"tfs_z": 1.0}, "temperature", 0.8),
    ({"seed": 2.0**70}, "seed", 0), ({"num_predict": 1e12}, "max_tokens", 2**31 - 1),
    ({"top_k": 10**400}, "top_k", 2**31 - 1),
])  # fmt: skip
def test_values(given: dict[str, Any], name: str, expected: Any) -> None:
    assert getattr(read_options(given).params(128, None), name) == expected
