"""Sampling for generations that are steered: by a constraint's token masks, by logits processors, or by drafts.

A draft is verified by drawing: the row behind a draft token is valid only if the row before drew that token. Where
nothing but the draft steers, all its rows are drawn in one call; otherwise one row of each generation at a time.

    input           last token    draft[0]         draft[1]
    row of logits   first         first + 1        first + 2        n_rows = 3
    token drawn     = draft[0]    not draft[1]     none: invalid    n_right = 1; draft[1] is taken back

Tokens that a constraint forces behind the one that was drawn may be in the draft, too: their rows are not drawn from.
"""

from __future__ import annotations

from collections.abc import Sequence

from ollama_engine.input import FloatArray, Int32Array
from ollama_engine.runner.request.results import FinishReason
from ollama_engine.runner.schedule.batching import Step
from ollama_engine.runner.schedule.row_readers import is_sound
from ollama_engine.runner.schedule.sequence import Generation
from ollama_engine.runner.schedule.steering import Constraint, MaskSource, TokenMask
from ollama_engine.sample import Sampler, TokenLogprobs, sample_drafts, sample_rows

__all__ = ["SteeredRows", "draw_steered", "prepare_masks", "sample_all"]


class SteeredRows:
    """The tokens that a steered generation gets from its rows of one step."""

    __slots__ = (
        "draft", "draft_forced", "ended", "error", "first", "generation", "logprobs", "n_right", "n_rows", "only_draft",
        "reason", "sound", "text", "tokens",
    )  # fmt: skip

    def __init__(self, generation: Generation, row: int, n_rows: int, now: float) -> None:
        generation.awaited -= 1
        generation.first_token_at = generation.first_token_at or now
        self.generation = generation
        self.first = row
        """The row of the logits for the first token."""
        self.n_rows = n_rows
        self.draft, generation.draft = generation.draft[: n_rows - 1], ()
        self.draft_forced = generation.draft_forced
        self.only_draft = generation.constraint is None and generation.processors is None
        """Whether nothing but the draft steers: then `sample_drafts` draws its tokens, and accepts them."""
        self.n_right = 0
        """Tokens of the draft that have come: the rows behind these are valid."""
        self.tokens: list[int] = []
        self.text: str | None = "" if generation.emitter.may_stop else None
        """That of the tokens, where stop texts are looked for; otherwise delivery asks for it."""
        self.logprobs: list[TokenLogprobs] = []
        self.ended = False
        self.reason: FinishReason | None = None
        self.error: BaseException | None = None
        self.sound = True

    def prepare(self, logits: FloatArray) -> TokenMask | Exception | None:
        """The mask of allowed next tokens, when the processors have changed this row's `logits`.

        Or the error of a processor or the constraint, which ends only this request.
        """
        generation = self.generation
        try:
            if generation.processors is not None:
                generation.processors.apply(logits[: generation.sampler.n_vocab])
            return None if generation.constraint is None else generation.constraint.mask()
        except Exception as error:
            return error

    @property
    def row(self) -> int:
        """The row of the logits for the next token."""
        return self.first + len(self.tokens)

    @property
    def drafted(self) -> int:
        """Guesses that the step verified."""
        return self._guesses(self.n_rows - 1)

    @property
    def accepted(self) -> int:
        """Those of them that were right."""
        return self._guesses(self.n_right)

    def _guesses(self, n: int) -> int:
        """How many of the first `n` tokens of the draft are guesses: the constraint forces the others."""
        return n - (self.draft_forced & ((1 << n) - 1)).bit_count()

    @property
    def forced(self) -> int | None:
        """The token that comes next whatever the logits are, if the constraint forces one."""
        constraint = self.generation.constraint
        return constraint.forced[0] if constraint is not None and constraint.forced else None

    def take(self, token: int | Exception, logits: FloatArray) -> bool:
        """Take the drawn token, and those that are forced behind it. Returns whether the next one has a valid row."""
        generation, row = self.generation, self.row
        try:
            if isinstance(token, BaseException):
                raise token
            if token in generation.eog_ids:
                return self._end("stop")
            if (wanted := generation.params.logprobs) is not None:
                scores = logits[row, : generation.sampler.n_vocab]
                self.logprobs.append(generation.sampler.logprobs(scores, token, wanted))
            self._accept(token)
            if self._at_end() or self._take_forced():
                return False
        except Exception as error:
            self.error, self.sound = error, is_sound(logits[row])
            return self._end(None)
        return self.n_right == len(self.tokens) < self.n_rows

    def _accept(self, token: int) -> None:
        generation, at = self.generation, len(self.tokens)
        if self.n_right == at and self.draft[at : at + 1] == (token,):
            self.n_right += 1
        if not self.only_draft:
            generation.sampler.accept(token)
        if generation.processors is not None:
            generation.processors.accept(token)
        if generation.constraint is not None:
            generation.constraint.accept(token)
        self.tokens.append(token)
        generation.sampled.append(token)
        generation.n_generated += 1
        # Here, and not in delivery: a token behind a stop text must not enter the context.
        if self.text is not None:
            self.text += generation.emitter.push(token)

    def _take_forced(self) -> bool:
        """Take the tokens that the constraint forces, which are computed at once; whether the answer ends with them.

        Where log-probabilities are asked for, each needs its row of logits, and they come one by one.
        """
        constraint = self.generation.constraint
        if constraint is None or self.generation.params.logprobs is not None:
            return False
        while not self.ended and constraint.forced:
            self._accept(constraint.forced[0])
            self._at_end()
        return self.ended

    def _at_end(self) -> bool:
        """End with the token taken last, where the answer ends there."""
        generation = self.generation
        if generation.emitter.stopped or (generation.constraint is not None and generation.constraint.ended):
            self._end("stop")
        elif generation.complete:
            self._end("length")
        return self.ended

    def _end(self, reason: FinishReason | None) -> bool:
        self.ended, self.reason = True, reason
        self.generation.epoch += 1
        return False

    def take_back(self) -> int:
        """Withdraw the inputs of the step that were wrong draft tokens; returns their number."""
        self.generation.drafted += self.drafted
        self.generation.accepted += self.accepted
        wrong = 0 if self.ended else self.n_rows - 1 - self.n_right
        self.generation.submitted -= wrong
        return wrong


def prepare_masks(step: Step) -> None:
    """Make the token masks for the rows of a step, while the device computes it."""
    by_maker: dict[MaskSource, list[Constraint]] = {}
    for entry in step.entries:
        sequence = entry.sequence
        if not isinstance(sequence, Generation) or not entry.outputs or not entry.alive:
            continue
        constraint = sequence.constraint
        if constraint is not None and constraint.maker is not None:
            by_maker.setdefault(constraint.maker, []).append(constraint)
    for maker, constraints in by_maker.items():
        maker.make(constraints)


def draw_steered(steered: list[SteeredRows], logits: FloatArray) -> list[SteeredRows]:
    """Draw for all of them: at once where only a draft steers.

    Of the others, all first rows are drawn at once, then the second rows of those whose draft was right, and so on.
    """
    _draw_drafts([rows for rows in steered if rows.only_draft], logits)
    active = [rows for rows in steered if not rows.only_draft]
    while active:
        # A token that is forced is not drawn: the random stream, which others come from, goes on where it was.
        drawn = [rows for rows in active if rows.forced is None]
        places = [rows.row for rows in drawn]
        wanted = logits
        if any(rows.generation.processors is not None for rows in drawn):
            wanted, places = logits[places], list(range(len(drawn)))  # a copy, which they may change
        masks = [rows.prepare(wanted[row]) for rows, row in zip(drawn, places, strict=True)]
        samplers = [rows.generation.sampler for rows in drawn]
        tokens = iter(sample_all(samplers, wanted, places, masks) if drawn else ())
        chosen = [next(tokens) if rows.forced is None else rows.forced for rows in active]
        active = [rows for rows, token in zip(active, chosen, strict=True) if rows.take(token, logits)]
    return steered


def _draw_drafts(steered: list[SteeredRows], logits: FloatArray) -> None:
    """Draw from the rows of each generation that only its draft steers, up to the first wrong guess."""
    for rows, tokens in zip(steered, _verified(steered, logits), strict=True):
        for token in tokens:
            if not rows.take(token, logits):
                break


def _verified(steered: list[SteeredRows], logits: FloatArray) -> Sequence[Sequence[int | Exception]]:
    """The tokens of each generation, as `sample_drafts` gives them, or the exception that this raised for it."""
    samplers = [rows.generation.sampler for rows in steered]
    try:
        return sample_drafts(samplers, logits, [rows.first for rows in steered], [rows.draft for rows in steered])
    except Exception as error:  # one by one, so that only those with an error end
        return [[error]] if len(steered) == 1 else [_verified([rows], logits)[0] for rows in steered]


def sample_all(
    samplers: list[Sampler], logits: FloatArray, rows: Sequence[int],
    masks: Sequence[TokenMask | Exception | None] | None = None, known: Sequence[Int32Array | None] | None = None,
) -> list[int | Exception]:  # fmt: skip
    """A token for each of these rows of logits [n, n_vocab], or the exception of sampling it. As `sample_rows`."""
    try:
        if masks is None or all(mask is None for mask in masks):
            return list(sample_rows(samplers, logits, known=known, rows=rows))
        sound = [mask for mask in masks if not isinstance(mask, Exception)]
        if len(sound) == len(masks):
            return list(sample_rows(samplers, logits, sound, rows=rows))
    except Exception:
        pass  # sampled again below, one by one, so that only rows with an error end their requests
    given = masks or [None] * len(samplers)
    return [_sample_alone(sampler, logits[row], mask) for sampler, row, mask in zip(samplers, rows, given, strict=True)]


def _sample_alone(sampler: Sampler, row: FloatArray, mask: TokenMask | Exception | None) -> int | Exception:
    if isinstance(mask, Exception):
        return mask
    try:
        return sampler.sample(row[: sampler.n_vocab], mask)
    except Exception as error:
        return error
