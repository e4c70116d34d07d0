"""Intake: from a caller's prompt to a sequence that the core can take, or the error that says why not."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from ollama_engine.errors import ConfigError, ContextOverflowError, Option, TokenizerError
from ollama_engine.runner.load.loading import Loaded
from ollama_engine.runner.prefix.pinned_prefix import PinnedPrefix
from ollama_engine.runner.request.channel import RequestChannel
from ollama_engine.runner.request.options import RequestOptions
from ollama_engine.runner.request.prompts import check_params
from ollama_engine.runner.schedule.inputs import Inputs
from ollama_engine.runner.schedule.overflow import plan_truncation
from ollama_engine.runner.schedule.sequence import Generation, Scoring
from ollama_engine.runner.schedule.text_emitter import TextEmitter
from ollama_engine.sample import Sampler, SamplingParams

__all__ = ["new_generation", "new_scoring", "refuse_encoder"]

NUM_CTX = Option("num_ctx")
SHORTEN, REWIND = "shorten it", "append less or rewind it"
LARGER = ("choose a larger ", NUM_CTX)
CUT = ("let it be cut with ", Option("on_overflow", "truncate"), " or ", Option("on_overflow", "shift"))


def new_generation(
    loaded: Loaded,
    prompt: Sequence[int],
    params: SamplingParams,
    options: RequestOptions,
    channel: RequestChannel,
    *,
    follows: Generation | None = None,
    pinned: PinnedPrefix | None = None,
) -> Generation:
    """A request for an answer; one that `follows` another begins when that one's prompt is there to share.

    Raises ConfigError for an empty prompt and for a model that only reads, TokenizerError for unknown ids,
    ContextOverflowError for a prompt longer than num_ctx, or as long where an answer is wanted, unless it may be cut.
    """
    refuse_encoder(loaded)
    check_params(params)
    _check(prompt, loaded.model.n_vocab)
    inputs = Inputs.text(prompt)
    keep = dropped = 0
    if options.on_overflow == "error":
        _check_room(len(prompt), loaded.num_ctx, params, in_session=pinned is not None)
    elif len(inputs) > loaded.num_ctx - _first_token(params, options):
        limit = loaded.num_ctx - _answer_room(loaded.num_ctx, params, options)
        plan = plan_truncation(len(inputs), limit, options.num_keep)
        keep, dropped = plan.keep, len(plan.dropped)
        inputs = inputs.without(plan.dropped.start, plan.dropped.stop)
    else:
        keep = plan_truncation(len(inputs), loaded.num_ctx, options.num_keep).keep
    # A model may have more rows of output than tokens, for padding; those are not drawn.
    sampler = Sampler(params, min(loaded.model.n_vocab, loaded.tokenizer.n_vocab))
    sampler.accept_many(inputs.tokens.tolist())
    return Generation(
        channel=channel,
        inputs=inputs,
        num_ctx=loaded.num_ctx,
        options=options,
        submitted_at=time.perf_counter(),
        params=params,
        sampler=sampler,
        emitter=TextEmitter(loaded.tokenizer.detokenizer(continues=True), tuple(params.stop)),
        eog_ids=loaded.tokenizer.eog_ids,
        n_prompt=len(prompt),
        dropped=dropped,
        keep=keep,
        # Who shares nothing need not wait for anybody.
        follows=follows if options.cache else None,
        pinned=pinned,
    )


def _answer_room(num_ctx: int, params: SamplingParams, options: RequestOptions) -> int:
    """Tokens that a prompt which is cut leaves to its answer; one that is shifted makes its own room.

    All that are asked for, up to half of the context, or a quarter of it where no number is asked for; fewer where
    `num_keep` needs the place, but one.
    """
    if options.on_overflow == "shift":
        return 0
    room = num_ctx // 4 if params.max_tokens is None else min(params.max_tokens, num_ctx // 2)
    return max(_first_token(params, options), min(room, num_ctx - options.num_keep - 1))


def _first_token(params: SamplingParams, options: RequestOptions) -> int:
    """Places behind the prompt that an answer needs, at least; one that is shifted makes its own."""
    return 0 if params.max_tokens == 0 or options.on_overflow == "shift" else 1


def new_scoring(loaded: Loaded, prompt: Sequence[int], channel: RequestChannel) -> Scoring:
    """A request for the logits of every token of a prompt. Raises as `new_generation` does."""
    refuse_encoder(loaded)
    _check(prompt, loaded.model.n_vocab)
    _check_length(len(prompt), loaded.num_ctx)
    rows = np.empty((len(prompt), loaded.model.n_vocab), dtype=np.float32)
    return Scoring(
        channel=channel,
        inputs=Inputs.text(prompt),
        num_ctx=loaded.num_ctx,
        submitted_at=time.perf_counter(),
        rows=rows,
    )


def refuse_encoder(loaded: Loaded) -> None:
    """Raise ConfigError for a model that only reads."""
    if loaded.is_encoder:
        raise ConfigError(
            f"{loaded.model.architecture} reads texts and writes none: it has embeddings (Engine.embed), and scores "
            "where it was trained to rank (Engine.rank), but no answers and no logits"
        )


def _check(prompt: Sequence[int], n_vocab: int) -> None:
    if not prompt:
        raise ConfigError(
            "the prompt is empty: a list without anything in it, or a text where the model puts no token before it; "
            "give a text, token ids, or a list of prompts"
        )
    bad = [token for token in prompt if not 0 <= token < n_vocab]
    if bad:
        raise TokenizerError(f"token {bad[0]} is not in the vocabulary (0 to {n_vocab - 1})")


def _check_room(n_prompt: int, num_ctx: int, params: SamplingParams, *, in_session: bool) -> None:
    """Raise ContextOverflowError where the prompt does not fit, or leaves no place for the first token of an answer."""
    if n_prompt < num_ctx or (n_prompt == num_ctx and params.max_tokens == 0):
        return
    has = f"the session comes to {n_prompt} tokens" if in_session else f"the prompt has {n_prompt} tokens"
    full = ": no place is left for an answer" if n_prompt == num_ctx else ""
    raise ContextOverflowError(
        f"{has}, but ", NUM_CTX, f" is {num_ctx}{full}", advice=[REWIND if in_session else SHORTEN, LARGER, CUT]
    )


def _check_length(n_prompt: int, num_ctx: int) -> None:
    """Of what has no answer, and is never cut."""
    if n_prompt > num_ctx:
        raise ContextOverflowError(
            f"the prompt has {n_prompt} tokens, but ", NUM_CTX, f" is {num_ctx}", advice=[SHORTEN, LARGER]
        )
