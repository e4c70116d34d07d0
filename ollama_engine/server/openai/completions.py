"""Text completions: prompts of text or token ids, several answers to each, the best of several, prompts echoed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from ollama_engine.runner.request.results import Chunk, Completion, collect
from ollama_engine.server import sse
from ollama_engine.server.errors import ApiError
from ollama_engine.server.interleaving import interleaved
from ollama_engine.server.model_access import leased
from ollama_engine.server.openai.chat import DEFAULTS, numbered_seeds
from ollama_engine.server.openai.logprobs import completion_logprobs
from ollama_engine.server.openai.schemas import CompletionRequest
from ollama_engine.server.openai.usage import usage_body
from ollama_engine.server.requests.prompts import fill_in
from ollama_engine.server.requests.stored_defaults import sampling_params
from ollama_engine.server.served import ServedModel

if TYPE_CHECKING:
    from ollama_engine.runner.request.prompts import Prompt
    from ollama_engine.runner.request.results import Usage
    from ollama_engine.sample import SamplingParams, TokenLogprobs
    from ollama_engine.server.service import Service

__all__ = ["completion_events", "prompts_of", "text_completion"]


async def text_completion(service: Service, request: CompletionRequest) -> dict[str, Any]:
    """All answers of a request that does not stream."""
    async with leased(service, request.model, "completion") as model:
        call = await CompletionCall.of(model, request, service.settings.max_queue)
        chunks: list[list[Chunk]] = [[] for _ in call.starts]
        async with aclosing(interleaved(call.starts)) as coming:
            async for number, chunk in coming:
                chunks[number].append(chunk)
        done = [collect(parts) for parts in chunks]
        first = done[:: call.made]
        choices = []
        for number, (prompt, answer) in enumerate(call.chosen(done)):
            choice = CompletionChoice(call, prompt, first[prompt].prompt_logprobs)
            whole = Chunk(answer.text, answer.tokens, answer.logprobs, answer.finish_reason)
            choices.append(await choice.piece(model, number, whole))
        usage = usage_body([answer.usage for answer in first], [answer.usage for answer in done])
        return {**_head(model, request.model), "choices": choices, "usage": usage}


async def completion_events(service: Service, request: CompletionRequest) -> AsyncGenerator[bytes, None]:
    """The events of a request that streams."""
    with_usage = bool(request.stream_options and request.stream_options.include_usage)
    async with leased(service, request.model, "completion") as model:
        call = await CompletionCall.of(model, request, service.settings.max_queue)
        choices = [CompletionChoice(call, number // call.made, None) for number in range(len(call.starts))]
        head, tail = _head(model, request.model), {"usage": None} if with_usage else {}
        async with aclosing(interleaved(call.starts)) as coming:
            async for number, chunk in coming:
                choice = choices[number]
                choice.prompt_logprobs = choice.prompt_logprobs or chunk.prompt_logprobs
                if chunk.text or chunk.logprobs or chunk.finish_reason or (call.echo and not choice.began):
                    yield sse.event({**head, "choices": [await choice.piece(model, number, chunk)], **tail})
        if with_usage:
            usages = [choice.usage for choice in choices if choice.usage is not None]
            yield sse.event({**head, "choices": [], "usage": usage_body(usages[:: call.made], usages)})
    yield sse.DONE


@dataclass
class CompletionCall:
    """A request, made ready for a model.

    Attributes:
        prompts: of each prompt the text, its token ids, and how many tokens the model puts before them; all empty where
            prompts are not echoed.
        made: answers that are written to each prompt.
        returned: of these that the client gets.
        starts: what starts each answer, all to the first prompt first.
    """

    prompts: list[tuple[str, list[int], int]]
    made: int
    returned: int
    echo: bool
    logprobs: bool
    starts: list[Any] = field(default_factory=list)

    @classmethod
    async def of(cls, model: ServedModel, request: CompletionRequest, most: int) -> CompletionCall:
        """Raises ApiError for what contradicts itself and more than `most` answers, ConfigError as SamplingParams."""
        returned = request.n or 1
        made = request.best_of or returned
        if made < returned:
            raise ApiError(400, f"best_of is at least n, got {made} and n={returned}", param="best_of")
        if made > returned and request.stream:
            raise ApiError(400, "best_of cannot stream: the best is known at the end", param="best_of")
        prompts = prompts_of(request.prompt, "prompt")
        if len(prompts) * made > most:
            raise ApiError(400, f"prompt: at most {most} answers at once, got {len(prompts)} x {made}", param="prompt")
        echo = bool(request.echo)
        call = cls([], made, returned, echo, request.logprobs is not None)
        for prompt in prompts:
            call.prompts.append(await _echoed(model, prompt) if echo else ("", [], 0))
            whole = await asyncio.to_thread(_filled_in, model, request, prompt) if request.suffix else prompt
            params = _params(model, request, ranks=made > returned)
            form = request.wanted_format()
            options = {} if form is None else {"format": form}
            for answer, own in enumerate(numbered_seeds(params, made)):
                once = own if answer == 0 else replace(own, prompt_logprobs=None)
                call.starts.append(partial(model.generate, whole, once, **options))
        return call

    def chosen(self, done: Sequence[Completion]) -> list[tuple[int, Completion]]:
        """The answers for the client, each behind the number of its prompt. Where some are left out, the best first."""
        chosen: list[tuple[int, Completion]] = []
        for prompt in range(len(self.prompts)):
            answers = list(done[prompt * self.made : (prompt + 1) * self.made])
            if self.made > self.returned:
                answers.sort(key=lambda answer: -(answer.cumulative_logprob or 0.0))
            chosen += [(prompt, answer) for answer in answers[: self.returned]]
        return chosen


@dataclass
class CompletionChoice:
    """One answer, as far as it has been told."""

    call: CompletionCall
    prompt: int
    prompt_logprobs: tuple[TokenLogprobs | None, ...] | None
    began: bool = False
    offset: int = 0
    usage: Usage | None = None

    async def piece(self, model: ServedModel, number: int, chunk: Chunk) -> dict[str, Any]:
        """A chunk as an entry of "choices", behind the prompt where that is echoed."""
        text, entries = chunk.text, []
        if not self.began and self.call.echo:
            shown, ids, before = self.call.prompts[self.prompt]
            text = shown + text
            echoed = self.prompt_logprobs[before:] if self.prompt_logprobs else ()
            entries = list(zip(ids, echoed, strict=False))
        self.began, self.usage = True, chunk.usage or self.usage
        logprobs = None
        if self.call.logprobs:
            entries += [(entry.token, entry) for entry in chunk.logprobs or ()]
            logprobs, self.offset = await completion_logprobs(model, entries, offset=self.offset)
        return {"text": text, "index": number, "logprobs": logprobs, "finish_reason": chunk.finish_reason}


def prompts_of(given: Any, param: str) -> list[Prompt]:
    """One text, one list of token ids, or several of these. Raises ApiError for an empty list."""
    if isinstance(given, str):
        return [given]
    if not given:
        raise ApiError(400, f"{param}: expected a text, token ids, or a list of these, got an empty list", param=param)
    return [given] if isinstance(given[0], int) else list(given)


def _filled_in(model: ServedModel, request: CompletionRequest, prompt: Any) -> Prompt:
    """The prompt that asks for what stands between a text and the suffix. Raises ApiError where there is none."""
    if not isinstance(prompt, str) or request.echo:
        raise ApiError(400, "suffix goes with a prompt that is a text, and without echo", param="suffix")
    try:
        return fill_in(request.model, model.stored, prompt, request.suffix or "", model.stored.template)
    except ApiError as error:
        raise ApiError(error.status, str(error), param="suffix") from None


async def _echoed(model: ServedModel, prompt: Any) -> tuple[str, list[int], int]:
    """The text of a prompt, its token ids, and how many tokens the model puts before them."""
    if not isinstance(prompt, str):
        return await model.detokenize(prompt), list(prompt), 0
    plain, whole = await model.tokenize(prompt, add_special=False), await model.tokenize(prompt)
    before = next((n for n in range(len(whole)) if whole[n : n + len(plain)] == plain), 0)
    return prompt, plain, before


def _params(model: ServedModel, request: CompletionRequest, *, ranks: bool) -> SamplingParams:
    values = request.sampling()
    values["logprobs"] = request.logprobs if request.logprobs is not None else 0 if ranks else None
    if request.echo:
        values["prompt_logprobs"] = request.logprobs
    return sampling_params(model.stored, values, DEFAULTS)


def _head(model: ServedModel, name: str) -> dict[str, Any]:
    return {
        "id": f"cmpl-{uuid4().hex}",
        "object": "text_completion",
        "created": int(time.time()),
        "model": name,
        "system_fingerprint": f"fp_{model.stored.digest[:10]}",
    }
