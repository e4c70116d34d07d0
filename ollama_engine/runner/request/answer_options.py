"""Options of an answer from keyword arguments: those of sampling and those of the request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, cast

from ollama_engine.runner.request.options import RequestBesideFormat, RequestKeywords, RequestOptions
from ollama_engine.runner.request.prompts import check_params
from ollama_engine.sample import SamplingParams
from ollama_engine.sample.keywords import SamplingKeywords

__all__ = ["SAMPLING", "AnswerBesideFormat", "AnswerKeywords", "answer_options", "chosen_params", "request_keywords"]

SAMPLING = frozenset(option.name for option in fields(SamplingParams))


class AnswerBesideFormat(SamplingKeywords, RequestBesideFormat, total=False):
    """Those of `AnswerKeywords` but `format`."""


class AnswerKeywords(SamplingKeywords, RequestKeywords, total=False):
    """Keyword arguments of all that asks for an answer: those of `SamplingParams` and of `RequestKeywords`."""


def answer_options(
    params: SamplingParams | None, keywords: Mapping[str, Any], default: SamplingParams
) -> tuple[SamplingParams, RequestOptions]:
    """How tokens are chosen, and how the request is served. Raises ConfigError; UnknownOptionError for other names."""
    return chosen_params(params, keywords, default), RequestOptions.of(request_keywords(keywords))


def request_keywords(keywords: Mapping[str, Any]) -> RequestKeywords:
    """All but those of sampling."""
    rest = {name: value for name, value in keywords.items() if name not in SAMPLING}
    return cast(RequestKeywords, rest)


def chosen_params(
    params: SamplingParams | None, keywords: Mapping[str, Any], default: SamplingParams
) -> SamplingParams:
    """Keyword arguments stand above `params`, and those above the model's `default`."""
    chosen = default if params is None else params
    sampling = {name: keywords[name] for name in keywords if name in SAMPLING}
    if not sampling:
        return chosen  # whatever else came is refused where the prompt is read, too
    check_params(chosen)
    return replace(chosen, **sampling)
