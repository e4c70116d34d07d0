"""Engine: the public face. Load a model, then generate, stream, score and tokenize from any thread."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType

import numpy as np
import numpy.typing as npt

from ollama_engine.config import CacheType, EngineConfig, FlashAttention
from ollama_engine.errors import ClosedError, ConfigError
from ollama_engine.ml.device import devices as all_devices
from ollama_engine.ml.device_info import Device
from ollama_engine.ml.memory import MemoryReport
from ollama_engine.ml.metadata import MetadataValue
from ollama_engine.runner.emit import TextEmitter
from ollama_engine.runner.loading import Loaded, load
from ollama_engine.runner.loop import GenerateJob, LogitsJob, Loop, check_prompt
from ollama_engine.runner.request import FinishReason, Request, Usage
from ollama_engine.runner.stream import Stream
from ollama_engine.sample import Sampler, SamplingParams, TokenLogprobs

Prompt = str | Sequence[int]

_DEFAULT_PARAMS = SamplingParams()


@dataclass(frozen=True, slots=True)
class Completion:
    """A whole answer.

    Attributes:
        text: without control tokens, and cut before the stop text that ended it.
        tokens: all sampled tokens but the one that ended the generation; those of a stop text are included.
        finish_reason: "stop": the model ended, or a stop text appeared. "length": max_tokens or num_ctx is reached.
        usage: tokens counted and seconds taken.
        logprobs: one entry for each of `tokens`, when `SamplingParams.logprobs` asked for them.
    """

    text: str
    tokens: tuple[int, ...]
    finish_reason: FinishReason
    usage: Usage
    logprobs: tuple[TokenLogprobs, ...] | None


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What a model file says of itself, and what was decided for it.

    Attributes:
        path: of the file, or of the part that was named.
        architecture: which of the registered models it is.
        name: the model's own, None where the file has none.
        n_vocab: length of a row of logits.
        context_length: tokens that the model was trained for.
        n_parameters: numbers in all of its tensors.
        file_bytes: size of the file, all parts together.
        num_ctx: tokens that one request may hold.
        flash_attention: whether it is in use.
        threads: CPU threads in use.
        metadata: all GGUF keys and values; left out of the repr, for a vocabulary takes megabytes.
    """

    path: str
    architecture: str
    name: str | None
    n_vocab: int
    context_length: int
    n_parameters: int
    file_bytes: int
    num_ctx: int
    flash_attention: bool
    threads: int
    metadata: Mapping[str, MetadataValue] = field(repr=False)


class Engine:
    """A loaded model. Calls from several threads are safe; they are served in the order they come.

    Args:
        model: path of a GGUF file, or of any part of a split one.
        num_ctx: tokens that one request may hold, prompt and answer; None takes what the model was trained for, at most
            4096. More than it was trained for is logged as a warning.
        parallel: requests that fit beside each other; the cache has num_ctx * parallel cells. In this version requests
            are computed one after the other, so 1 is enough, and takes the least memory.
        batch_size: tokens computed in one step at most.
        threads: CPU threads, at most as many as this process has CPUs; None takes its physical cores. `info.threads`
            says how many there are.
        gpu_layers: layers on GPUs, counted from the last; None takes all when there is a GPU.
        main_gpu: the GPU to use, unless `tensor_split` names several.
        tensor_split: share of the layers for each GPU.
        flash_attention: "auto", "on" or "off".
        kv_cache_type: element type of keys and values: "f32", "f16", "bf16", "q8_0" or "q4_0".
        mmap: read weights from the mapped file instead of copying them. Nobody may shorten the file meanwhile: the
            system ends a process that reads where a mapped file no longer is.
        progress: called with (bytes done, bytes in all) while weights are read.

    Raises:
        OSError: the file cannot be opened.
        ModelFormatError, UnsupportedModelError: it is no GGUF that can be run here.
        ConfigError: an option is out of range, or the model cannot take it.
        NoMemoryError: weights, cache and the largest graph do not fit; `report` says what was planned. They are taken
            here, so that a context that fills up later finds its memory there.
    """

    def __init__(  # noqa: PLR0913 (the documented options; EngineConfig holds and checks them)
        self,
        model: str | os.PathLike[str],
        *,
        num_ctx: int | None = None,
        parallel: int = EngineConfig.parallel,
        batch_size: int = EngineConfig.batch_size,
        threads: int | None = None,
        gpu_layers: int | None = None,
        main_gpu: int = 0,
        tensor_split: Sequence[float] | None = None,
        flash_attention: FlashAttention | bool = "auto",
        kv_cache_type: CacheType = "f16",
        mmap: bool = True,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        config = EngineConfig(
            num_ctx=num_ctx,
            parallel=parallel,
            batch_size=batch_size,
            threads=threads,
            gpu_layers=gpu_layers,
            main_gpu=main_gpu,
            tensor_split=tensor_split,
            flash_attention=flash_attention,
            kv_cache_type=kv_cache_type,
            mmap=mmap,
        )
        self._closed = False
        self._loaded = loaded = load(model, config, progress)
        try:
            # The loop's thread frees the model, when nothing can be computing with it any more.
            self._loop = Loop(loaded.executor, loaded.cache, os.path.basename(loaded.path), on_exit=loaded.close)
        except BaseException:
            loaded.close()
            raise

    # -- generating ----------------------------------------------------------------------------------------------------

    def generate(self, prompt: Prompt, params: SamplingParams = _DEFAULT_PARAMS) -> Completion:
        """The whole answer to a prompt (text, or token ids that are taken as they are).

        Raises ContextOverflowError for a prompt longer than num_ctx; TokenizerError for ids outside of the vocabulary
        and text that it cannot express; ConfigError for an empty prompt or one of another type; SamplingError when the
        model computes NaN or every token is banned; ClosedError when the Engine is closed, before or meanwhile.
        """
        text: list[str] = []
        tokens: list[int] = []
        logprobs: list[TokenLogprobs] = []
        for chunk in self.stream(prompt, params):
            text.append(chunk.text)
            tokens += chunk.tokens
            logprobs += chunk.logprobs or ()
        assert chunk.finish_reason is not None
        assert chunk.usage is not None
        return Completion(
            text="".join(text),
            tokens=tuple(tokens),
            finish_reason=chunk.finish_reason,
            usage=chunk.usage,
            logprobs=None if params.logprobs is None else tuple(logprobs),
        )

    def stream(self, prompt: Prompt, params: SamplingParams = _DEFAULT_PARAMS) -> Stream:
        """The answer piece by piece; closing or dropping the iterator cancels the request at its next step.

        The request starts with this call, not with the first `next`. Raises as `generate` does; what is wrong with
        the prompt raises here.
        """
        request = self._request(self._prompt_ids(prompt), params)
        self._loop.submit(GenerateJob(request))
        return Stream(request, self)

    def _request(self, prompt: list[int], params: SamplingParams) -> Request:
        loaded = self._open()
        check_prompt(prompt, loaded.num_ctx, loaded.model.n_vocab)
        # A model may have more rows of output than tokens, for padding; those are not drawn.
        sampler = Sampler(params, min(loaded.model.n_vocab, loaded.tokenizer.n_vocab))
        sampler.accept_many(prompt)
        emitter = TextEmitter(loaded.tokenizer.detokenizer(continues=True), tuple(params.stop))
        return Request(prompt, params, sampler, emitter, loaded.tokenizer.eog_ids, loaded.num_ctx)

    def logits(self, prompt: Prompt) -> npt.NDArray[np.float32]:
        """The model's raw output at every token of a prompt, float32 [n_tokens, n_vocab].

        Row i scores the token that follows token i. Raises as `generate` does.
        """
        ids = self._prompt_ids(prompt)
        loaded = self._open()
        check_prompt(ids, loaded.num_ctx, loaded.model.n_vocab)
        job = LogitsJob(ids, loaded.model.n_vocab)
        self._loop.submit(job)
        return job.wait()

    # -- text and ids --------------------------------------------------------------------------------------------------

    def tokenize(self, text: str, *, add_special: bool = True, parse_special: bool = True) -> list[int]:
        """Token ids of a text.

        `add_special` adds the begin (and end) token where the model wants it; for a prompt in pieces pass False for
        all but the first. `parse_special` turns the text of control tokens into those tokens.
        """
        return self._open().tokenizer.encode(text, add_special=add_special, parse_special=parse_special)

    def detokenize(self, ids: Sequence[int]) -> str:
        """The text of token ids, control tokens left out, U+FFFD for bytes that are not UTF-8."""
        return self._open().tokenizer.decode(ids)

    def _prompt_ids(self, prompt: Prompt) -> list[int]:
        if isinstance(prompt, str):
            return self.tokenize(prompt)
        if isinstance(prompt, (bytes, bytearray)) or not isinstance(prompt, (Sequence, np.ndarray)):
            raise ConfigError(f"a prompt is a str or a sequence of token ids, got {type(prompt).__name__}")
        try:
            return [_token_id(t) for t in prompt]
        except TypeError:
            raise ConfigError("a prompt of token ids holds whole numbers only") from None

    # -- facts ---------------------------------------------------------------------------------------------------------

    @property
    def info(self) -> ModelInfo:
        """What the model file says of itself."""
        loaded = self._open()
        tensors = loaded.gguf.tensors.values()
        name = loaded.gguf.metadata.get("general.name")
        return ModelInfo(
            path=loaded.path,
            architecture=loaded.gguf.architecture,
            name=name if isinstance(name, str) else None,
            n_vocab=loaded.model.n_vocab,
            context_length=loaded.model.context_length,
            n_parameters=sum(int(np.prod(t.shape, dtype=np.int64)) for t in tensors),
            file_bytes=sum(os.path.getsize(f) for f in loaded.gguf.files),
            num_ctx=loaded.num_ctx,
            flash_attention=loaded.cache.flash_attention,
            threads=loaded.backend.threads,
            metadata=loaded.gguf.metadata,
        )

    @property
    def config(self) -> EngineConfig:
        """The options in effect."""
        return self._open().config

    @property
    def memory(self) -> MemoryReport:
        """Bytes taken, by device and layer; print it for a table."""
        return self._open().memory()

    @staticmethod
    def devices() -> tuple[Device, ...]:
        """The devices of this machine that the build can use, GPUs before the CPU."""
        return all_devices()

    # -- lifetime ------------------------------------------------------------------------------------------------------

    def _open(self) -> Loaded:
        if self._closed:
            raise ClosedError("this Engine is closed")
        return self._loaded

    def close(self) -> None:
        """End the running request, fail the waiting ones with ClosedError, and free all memory. Safe to call twice."""
        self._closed = True
        self._loop.close()

    def __enter__(self) -> Engine:
        self._open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        loop = getattr(self, "_loop", None)  # absent when __init__ raised
        if loop is not None:
            loop.close(wait=False)

    def __repr__(self) -> str:
        return f"Engine({self._loaded.path!r}{', closed' if self._closed else ''})"


def _token_id(value: object) -> int:
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)):
        raise TypeError
    return int(value)
