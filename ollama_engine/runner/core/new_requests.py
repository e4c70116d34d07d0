"""Makes requests for the engine core of inputs and options, or raises the error that says why not."""

from __future__ import annotations

import math
import time
from dataclasses import replace

from ollama_engine.errors import (
    ConfigError,
    ContextOverflowError,
    ImageError,
    Option,
)
from ollama_engine.runner.core.image_runs import check_image_runs
from ollama_engine.runner.core.input_processor import refuse_encoder
from ollama_engine.runner.core.text_room import CUT, LARGER, LET_CUT, NUM_CTX, SHORTEN
from ollama_engine.runner.load.loading import Loaded
from ollama_engine.runner.request.channel import RequestChannel
from ollama_engine.runner.request.inputs import Inputs
from ollama_engine.runner.request.options import RequestOptions
from ollama_engine.runner.request.prompts import check_params
from ollama_engine.runner.schedule.logits_processors import ProcessorChain
from ollama_engine.runner.schedule.overflow import plan_truncation
from ollama_engine.runner.schedule.pinned_prefix import PinnedPrefix
from ollama_engine.runner.schedule.row_readers import AllRows, PromptLogprobs, RowReader
from ollama_engine.runner.schedule.scoring import Scoring
from ollama_engine.runner.schedule.sequence import Generation
from ollama_engine.runner.schedule.steering import Constraint, Drafter
from ollama_engine.runner.schedule.text_emitter import TextEmitter
from ollama_engine.sample import Sampler, SamplingParams

__all__ = ["new_generation", "new_scoring"]

REWIND = "append less or rewind it"
_USUAL = RequestOptions()


def new_generation(
    loaded: Loaded, inputs: Inputs, params: SamplingParams, options: RequestOptions, channel: RequestChannel, *,
    follows: Generation | None = None, pinned: PinnedPrefix | None = None, constraint: Constraint | None = None,
    drafter: Drafter | None = None, show_special: bool = False,
) -> Generation:  # fmt: skip
    """A request for an answer. If it `follows` another request, it starts when that one's prompt can be shared.

    `show_special`: control tokens that are sampled are part of the answer's text, as they stand in the vocabulary.

    Raises ConfigError for an empty prompt and for a text encoder. Raises ContextOverflowError, unless the prompt may be
    cut, where it has more than num_ctx tokens, or exactly num_ctx and an answer is wanted.
    """
    refuse_encoder(loaded)
    check_params(params)
    n_prompt = len(inputs)
    ids = tuple(inputs.text_tokens()) if options.prompt_token_ids else None
    inputs, keep = _fitting(inputs, loaded, params, options, in_session=pinned is not None)
    sampler = _sampler(loaded, params)
    sampler.accept_many(_penalized(inputs, sampler.n_vocab))
    return Generation(
        channel=channel,
        inputs=inputs.within(options.cache_salt or ""),
        num_ctx=loaded.num_ctx,
        options=options,
        submitted_at=time.perf_counter(),
        params=params,
        sampler=sampler,
        emitter=TextEmitter(
            loaded.tokenizer.detokenizer(skip_special=not show_special, continues=True), tuple(params.stop or ())
        ),
        eog_ids=loaded.tokenizer.eog_ids,
        n_prompt=n_prompt,
        dropped=n_prompt - len(inputs),
        keep=keep,
        # Without the prefix cache there is nothing to share, so it need not wait.
        follows=follows if options.cache else None,
        row_reader=_prompt_reader(inputs, loaded, sampler, params),
        pinned=pinned,
        constraint=constraint,
        processors=ProcessorChain(options.logits_processors, inputs.tokens) if options.logits_processors else None,
        drafter=drafter,
        prompt_token_ids=ids,
    )


def _fitting(
    inputs: Inputs, loaded: Loaded, params: SamplingParams, options: RequestOptions, *, in_session: bool
) -> tuple[Inputs, int]:
    """The prompt, cut where it is too long and may be cut, and how many of its first inputs a shift keeps."""
    _check_prompt(inputs)
    keep = 0
    if options.on_overflow == "error" or not options.truncate_prompt:
        _check_room(len(inputs), loaded.num_ctx, params, options, in_session=in_session)
    if options.on_overflow != "error":
        inputs, keep = _truncated(inputs, loaded.num_ctx, params, options)
    _check_groups(inputs, loaded)
    check_image_runs(inputs, loaded)
    return inputs, keep


def _prompt_reader(inputs: Inputs, loaded: Loaded, sampler: Sampler, params: SamplingParams) -> PromptLogprobs | None:
    if params.prompt_logprobs is None:
        return None
    _check_rows(inputs, loaded)
    return PromptLogprobs(inputs, sampler, params.prompt_logprobs)


def _sampler(loaded: Loaded, params: SamplingParams) -> Sampler:
    # A model may have more rows of output than tokens, for padding; those are not drawn.
    n_drawn = min(loaded.model.n_vocab, loaded.tokenizer.n_vocab)
    breakers = loaded.breakers.find(tuple(params.dry_sequence_breakers)) if params.dry_multiplier else None
    if banned := loaded.tokenizer.suppressed_ids:
        params = replace(params, logit_bias={**(params.logit_bias or {}), **dict.fromkeys(banned, -math.inf)})
    return Sampler(params, n_drawn, breakers=breakers)


def _truncated(inputs: Inputs, num_ctx: int, params: SamplingParams, options: RequestOptions) -> tuple[Inputs, int]:
    """(the prompt, cut where needed; the number of inputs at its beginning that a shift keeps)."""
    limit = num_ctx
    if len(inputs) > num_ctx - _first_token(params, options):
        limit -= _answer_room(num_ctx, params, options)
    plan = plan_truncation(len(inputs), limit, options.num_keep, inputs.groups)
    return inputs.without(plan.dropped.start, plan.dropped.stop), plan.keep


def _check_groups(inputs: Inputs, loaded: Loaded) -> None:
    """Raise ImageError for a group of inputs that is larger than a batch."""
    most = max(loaded.executor.batch_size, loaded.executor.traits.largest_group)
    if inputs.largest_group > most:
        raise ImageError(
            f"{inputs.largest_group} inputs of the prompt belong together (one image), but a batch has {most} at most",
            advice=["give a smaller image", ("choose a larger ", Option("batch_size"))],
        )


def _penalized(inputs: Inputs, n_vocab: int) -> list[int]:
    """The tokens that penalties and DRY look back on: those of text."""
    return [token for token in inputs.text_tokens() if token < n_vocab]


def _answer_room(num_ctx: int, params: SamplingParams, options: RequestOptions) -> int:
    """Room in tokens that cutting a prompt leaves for its answer; 0 with context shift, which makes room later.

    `max_tokens`, at most half of the context; without `max_tokens` a quarter of it. Less where `num_keep` needs the
    room, but at least one.
    """
    if options.on_overflow == "shift":
        return 0
    room = num_ctx // 4 if params.max_tokens is None else min(params.max_tokens, num_ctx // 2)
    return max(_first_token(params, options), min(room, num_ctx - options.num_keep - 1))


def _first_token(params: SamplingParams, options: RequestOptions) -> int:
    """1 where the context needs room for a first token; 0 without an answer, and with context shift."""
    return 0 if params.max_tokens == 0 or options.on_overflow == "shift" else 1


def new_scoring(
    loaded: Loaded, inputs: Inputs, channel: RequestChannel, row_reader: RowReader | None = None,
    options: RequestOptions = _USUAL, *, follows: Scoring | None = None, shared: int = 0, kept: bool = True,
) -> Scoring:  # fmt: skip
    """A request for what `row_reader` makes of a prompt's logits; None: the logits of every input.

    One that `follows` another begins when the `shared` inputs that both begin with are computed. `kept`: whether its
    history stays in the cache. Raises as `new_generation` does.
    """
    refuse_encoder(loaded)
    _check_prompt(inputs)
    _check_length(len(inputs), loaded.num_ctx)
    if row_reader is None:
        _check_rows(inputs, loaded)
        row_reader = AllRows(len(inputs), loaded.model.n_vocab)
    return Scoring(
        channel=channel,
        inputs=inputs.within(options.cache_salt or ""),
        num_ctx=loaded.num_ctx,
        options=options,
        submitted_at=time.perf_counter(),
        row_reader=row_reader,
        follows=follows,
        shared=shared,
        kept=kept,
    )


def _check_rows(inputs: Inputs, loaded: Loaded) -> None:
    """Raise ImageError for inputs that belong together where a step has fewer rows of logits."""
    most = loaded.executor.max_outputs
    if inputs.largest_group > most:
        raise ImageError(
            f"{inputs.largest_group} inputs of the prompt belong together (one image), and a step has rows of logits "
            f"for {most}; give text only"
        )


def _check_prompt(inputs: Inputs) -> None:
    if not len(inputs):
        raise ConfigError(
            "the prompt is empty: a list without anything in it, or a text where the model puts no token before it; "
            "give a text, token ids, or a list of prompts"
        )


def _check_room(
    n_prompt: int, num_ctx: int, params: SamplingParams, options: RequestOptions, *, in_session: bool
) -> None:
    """Raise ContextOverflowError where the prompt does not fit, or leaves no room for a first token."""
    if n_prompt < num_ctx or (n_prompt == num_ctx and params.max_tokens == 0):
        return
    has = f"the session comes to {n_prompt} tokens" if in_session else f"the prompt has {n_prompt} tokens"
    full = ": no place is left for an answer" if n_prompt == num_ctx else ""
    cut = CUT if options.on_overflow == "error" else LET_CUT
    raise ContextOverflowError(
        f"{has}, but ", NUM_CTX, f" is {num_ctx}{full}", advice=[REWIND if in_session else SHORTEN, LARGER, cut]
    )


def _check_length(n_prompt: int, num_ctx: int) -> None:
    """Raise ContextOverflowError where a prompt without an answer does not fit; such a prompt is never cut."""
    if n_prompt > num_ctx:
        raise ContextOverflowError(
            f"the prompt has {n_prompt} tokens, but ", NUM_CTX, f" is {num_ctx}", advice=[SHORTEN, LARGER]
        )
