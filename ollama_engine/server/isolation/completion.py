"""/completion and /embedding of a runner: Ollama's own protocol between its server and a model's process."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import fields
from typing import Any

from ollama_engine.errors import ConfigError
from ollama_engine.runner.request.results import Chunk, Usage
from ollama_engine.sample import SamplingParams
from ollama_engine.sample.constraints.formats import GBNF
from ollama_engine.server.served import ServedModel

__all__ = ["completion", "embedding"]

REASONS = {"stop": 0, "length": 1}


async def completion(model: ServedModel, body: dict[str, Any]) -> AsyncGenerator[bytes, None]:
    """An answer in JSON lines: pieces of text, then the counts. Raises as `Engine.generate` does."""
    prompt, params, keywords = _request(body)
    async with aclosing(model.generate(prompt, params, **keywords)) as stream:
        async for chunk in stream:
            yield json.dumps(await _piece(model, chunk)).encode() + b"\n"
            if chunk.usage is not None and chunk.finish_reason is not None:
                yield json.dumps(_last(REASONS[chunk.finish_reason], chunk.usage)).encode() + b"\n"


async def embedding(model: ServedModel, body: dict[str, Any]) -> dict[str, Any]:
    """The vector of one text, normalized."""
    (embedded,) = await model.embed([str(body.get("content", ""))], normalize=True, dimensions=None, truncate=False)
    return {"embedding": embedded.vector.tolist(), "prompt_eval_count": embedded.prompt_tokens}


def _request(body: dict[str, Any]) -> tuple[str, SamplingParams, dict[str, Any]]:
    if not isinstance(body.get("Prompt"), str):
        raise ConfigError("Prompt is a text")
    images = sorted(body.get("Images") or [], key=lambda image: int(image.get("id", 0)))
    keywords: dict[str, Any] = {
        "images": [base64.b64decode(image["data"]) for image in images] or None,
        "on_overflow": "shift" if body.get("Shift", True) else "truncate" if body.get("Truncate", True) else "error",
    }
    if body.get("Grammar"):
        keywords["format"] = GBNF(body["Grammar"])
    elif body.get("Format"):
        keywords["format"] = body["Format"]
    options = body.get("Options") or {}
    keywords["num_keep"] = max(0, options.get("num_keep", 0))
    known = {option.name for option in fields(SamplingParams)}
    params = {name: value for name, value in options.items() if name in known and value is not None}
    if options.get("num_predict", -1) >= 0:
        params["max_tokens"] = options["num_predict"]
    if params.get("seed", 0) < 0:
        del params["seed"]
    if body.get("Logprobs"):
        params["logprobs"] = body.get("TopLogprobs", 0)
    return body["Prompt"], SamplingParams(**params), keywords


async def _piece(model: ServedModel, chunk: Chunk) -> dict[str, Any]:
    piece: dict[str, Any] = {"content": chunk.text}
    if chunk.logprobs is not None:
        piece["logprobs"] = [
            {
                **await _token(model, entry.token, entry.logprob),
                "top_logprobs": [await _token(model, token, logprob) for token, logprob in entry.top],
            }
            for entry in chunk.logprobs
        ]
    return piece


async def _token(model: ServedModel, token: int, logprob: float) -> dict[str, Any]:
    (text,) = await model.token_bytes([token])
    return {"token": text.decode(errors="replace"), "logprob": logprob}


def _last(reason: int, usage: Usage) -> dict[str, Any]:
    return {
        "done": True, "done_reason": reason, "prompt_eval_count": usage.prompt_tokens,
        "prompt_eval_duration": round(usage.prompt_seconds * 1e9), "eval_count": usage.completion_tokens,
        "eval_duration": round(usage.completion_seconds * 1e9),
    }  # fmt: skip
