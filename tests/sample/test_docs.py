"""docs/sampling.md lists every option, with its default, and llama.cpp's order."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

from ollama_engine.sample import SamplingParams
from ollama_engine.sample.params import DEFAULT_SAMPLERS, SAMPLERS

PAGE = (Path(__file__).resolve().parents[2] / "docs/sampling.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\|(.*?)\| `(\w+)` \| (.*?) \| (.*?) \|", PAGE, flags=re.MULTILINE)
LLAMA_CPP = {
    "penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature", "infill", "adaptive_p"
}  # fmt: skip
"""`common_sampler_type_to_str` of llama.cpp (common/sampling.cpp), from which `--samplers` is read."""
NO_SAMPLERS = {"samplers", "stop", "max_tokens", "logprobs", "prompt_logprobs"}
WORDS = {"logit_bias": "none", "seed": "random", "dry_sequence_breakers": '`\\n` `:` `"` `*`'}


def test_every_option_has_a_row_with_its_default() -> None:
    defaults = {option: default for _, option, _, default in ROWS}
    assert set(defaults) == {spec.name for spec in fields(SamplingParams)} - NO_SAMPLERS
    for spec in fields(SamplingParams):
        if spec.name in defaults:
            expected = WORDS.get(spec.name) or f"{spec.default:g}"
            assert defaults[spec.name].removesuffix(" (off)") == expected, spec.name


def test_samplers_are_named_in_their_order() -> None:
    named = [re.fullmatch(r" `(\w+)`.*", first) for first, *_ in ROWS]
    order = [match[1] for match in named if match]
    assert order == list(SAMPLERS)
    diagram = PAGE[PAGE.index("logits ─▶") : PAGE.index("`samplers=` gives")]
    places = [re.search(rf"\b{name}\b", diagram) for name in DEFAULT_SAMPLERS]
    assert all(places)
    found = [match.start() for match in places if match]
    assert found[:5] == sorted(found[:5])


def test_the_samplers_are_llama_cpps() -> None:
    """As the README says: all but one."""
    assert LLAMA_CPP - set(SAMPLERS) == {"infill"}
    assert set(SAMPLERS) <= LLAMA_CPP


def test_default_of_samplers() -> None:
    assert SamplingParams().samplers == DEFAULT_SAMPLERS
    assert sorted(DEFAULT_SAMPLERS) == sorted(SAMPLERS)
