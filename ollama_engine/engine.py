"""Engine: a loaded model, which any number of threads and asyncio tasks share. All it does, on one page:

    a prompt             generate     agenerate      the whole answer; `n` and lists of prompts give several
                         stream       astream        the answer piece by piece
                         submit       fork           a request to wait for later, or to continue twice
                         map_batches                 any number of prompts, to a file that can be resumed
    a conversation       chat         achat          the assistant's message
                         chat_stream  achat_stream   the message piece by piece
                         apply_template              the prompt of a conversation
                         chat_template(s)            how the model's conversations are written
    a text that stays    session      load_session   only what is new is computed
    probabilities        score        ascore         of continuations of a prompt
                         logits                      of every token
    vectors              embed        aembed         of texts, and images
                         embeddings   aembeddings    of texts, with their numbers of tokens
                         embed_image  aembed_image   of images
    scores               rank         arank          of documents, as answers to a query
    tokens               tokenize     detokenize     token_bytes
    what it is           info         config         memory, plan_memory, devices
    what it is doing     metrics      slots          steps, trace
    steering             cancel       set_priority   of requests that are in the engine, whoever made them
    its end, its sleep   close        closed         sleep, wake_up, is_sleeping

Answers, scores and vectors come by an `EngineCall` (runner/request/call.py); each family of methods is a module of its
own: runner/{core,chat,score,embed,bulk,load}/methods.py.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, cast

import ollama_engine  # its Session is imported when it is asked for: a program starts sooner
from ollama_engine.closing import Closing
from ollama_engine.config import CacheType, Drafting, EngineConfig, FlashAttention
from ollama_engine.errors import ClosedError, ConfigError, Option
from ollama_engine.not_copied import NotCopied
from ollama_engine.option_names import refuses_unknown
from ollama_engine.runner import session as sessions
from ollama_engine.runner.bulk.methods import BatchMethods
from ollama_engine.runner.chat.methods import ChatMethods
from ollama_engine.runner.core.engine_core import EngineCore
from ollama_engine.runner.core.engine_thread import EngineThread
from ollama_engine.runner.core.input_processor import segment_ids
from ollama_engine.runner.core.methods import GenerateMethods
from ollama_engine.runner.core.sleeping import SleepMethods
from ollama_engine.runner.core.submission import Submission
from ollama_engine.runner.core.tasks import EngineTask
from ollama_engine.runner.embed.methods import EmbedMethods
from ollama_engine.runner.load.loading import Loaded, load
from ollama_engine.runner.load.methods import FactMethods
from ollama_engine.runner.load.sleeping import ModelMemory
from ollama_engine.runner.observe.metrics import MetricsSnapshot
from ollama_engine.runner.observe.monitor import Monitor, SlotInfo
from ollama_engine.runner.observe.trace import StepRecord
from ollama_engine.runner.request.options import options_elsewhere
from ollama_engine.runner.score.methods import ScoreMethods
from ollama_engine.runner.session.identity import ModelIdentity
from ollama_engine.segments import Segment

if TYPE_CHECKING:
    from typing_extensions import Self


@refuses_unknown(options_elsewhere)
class Engine(
    GenerateMethods, BatchMethods, EmbedMethods, ChatMethods, ScoreMethods, FactMethods, SleepMethods, NotCopied,
    Closing,
):  # fmt: skip
    """A loaded model, shared by any number of threads and asyncio tasks: their requests are computed together.

    Args:
        model: path of a GGUF file, or of any part of a split one; or a name that `ollama-engine list` shows, for which
            the Modelfile's num_ctx, template, system message, first messages and parameters stand below what is said
            here and in calls; or "demo" and "demo-vision", the models inside of this package.
        num_ctx: tokens that one request may hold, prompt and answer; None takes what the model was trained for, at most
            4096. More than it was trained for is logged as a warning.
        parallel: requests computed side by side; others wait. They share num_ctx * parallel cells of the cache, which
            also keeps the histories of ended requests, as long as there is room, for those that begin alike.
        max_queue: calls of all kinds that may wait, beyond `parallel`; more are refused with EngineBusyError.
        batch_size: tokens computed in one step at most.
        threads: CPU threads, at most as many as this process has CPUs; None takes its physical cores. `info.threads`
            says how many there are.
        devices: names of the devices to use beside the CPU, as `ollama-engine devices` lists them;
            "rpc://HOST:PORT" means all devices of a worker (`ollama-engine worker`) on another machine. None takes the
            GPUs of this one. Where a worker is gone, requests in flight end with a DeviceLostError, and the Engine
            closes.
        gpu_layers: layers on GPUs, counted from the last, the output layer being one; None takes as many as fit.
        main_gpu: the device to fill first, by its number in `devices`, or among the GPUs: it holds the output, also
            where `tensor_split` shares out the layers. None takes the one with most free memory.
        tensor_split: share of the layers for each of them; None uses the fewest that hold all, or else all.
        cpu_experts: layers, from the first, whose experts stay on the CPU (mixtures of experts); None keeps as few
            there as possible, and moves experts there before it moves whole layers.
        flash_attention: "auto", "on" or "off"; True and False are on and off.
        kv_cache_type: element type of keys and values, smaller ones for longer contexts: "f32", "f16", "bf16", "q8_0",
            "q5_1", "q5_0", "q4_1", "iq4_nl" or "q4_0".
        draft: how tokens are guessed that one step verifies beside the next one, where that pays (speculative
            decoding). "lookup" guesses what followed the same tokens earlier in the context, or in recent answers with
            the same `cache_salt`; "model" has `draft_model` guess where that is surer, "mtp" the model's own head
            (multi-token prediction), where its file has one; "off" guesses nothing. "auto" is "model" with a draft
            model, else "mtp" with a head, else "lookup", where the CPU computes all layers, with kernels whose answers
            are then the same to the bit. Devices round several rows otherwise than one, and so do kernels for some
            types of weights.
        draft_model: path or name of a smaller model with the same vocabulary, on the CPU, with as many cells of cache.
        image_cache_bytes: host memory for embeddings of images: each is encoded once. The least recently used go first.
        state_cache_bytes: memory for checkpoints of recurrent models (LFM2, say), where prompts that begin alike go on;
            at least one for each of `parallel`. The least recently used go first.
        prefix_store: a folder for keys and values of prompts, or True for one in the user's cache; not encrypted.
            Prompts that begin like an earlier one, even before a restart, read them where that is quicker.
        prefix_store_bytes: bytes that it may take; None: 4 GiB, or a tenth of the free disk if that is less.
        mmap: read weights from the mapped file instead of copying them: loading is quicker, and processes share them.
            Changing the file in place, instead of replacing it, closes the Engine with a ClosedError. On Linux a read
            lease makes who opens it for writing wait for a step or two. Without a lease (another user's file, a network
            file system), and while the model loads, truncating it kills the process (SIGBUS); not so with False.
        expert_cache_bytes: memory for experts of a mixture larger than memory; others are read when they are chosen.
        measure_kernels: measure at the first load which kernels are the fastest on this CPU (0.15 s), and keep that in
            the user's cache folder. False, or where that cannot be written: a built-in table decides.
        verify: check the cache's bookkeeping after every step.
        projector: path of the part that reads images, where it is a file of its own (llama.cpp's "mmproj" files).
        progress: called with (bytes done, bytes in all) while weights are read.
        isolation: "process" loads the model in a process of its own, and returns a `ProcessEngine`: what crashes there,
            or is killed for memory, is a ModelProcessError here. Needs the extra `server`.

    Raises:
        OSError: the file cannot be opened.
        ModelFormatError, UnsupportedModelError: it is no GGUF that can be run here.
        ConfigError: an option is out of range, or the model cannot take it.
        DeviceError: a device cannot be started, or no worker answers.
        NoMemoryError: weights, cache and the largest graph do not fit; `report` says what was planned. They are taken
            here, so that a context that fills up later finds its memory there.
    """

    def __new__(cls, *args: Any, isolation: str = "none", **options: Any) -> Self:
        if isolation == "none":
            return super().__new__(cls)
        if isolation != "process":
            raise ConfigError(Option("isolation"), f" is 'none' or 'process', got {isolation!r:.40}")
        made: Any = ollama_engine.ProcessEngine
        return cast("Self", made(*args, **options))  # which is no Engine, so Python does not call __init__

    def __init__(  # noqa: PLR0913 (the documented options; EngineConfig holds and checks them)
        self,
        model: str | os.PathLike[str],
        *,
        num_ctx: int | None = None,
        parallel: int = EngineConfig.parallel,
        max_queue: int = EngineConfig.max_queue,
        batch_size: int = EngineConfig.batch_size,
        threads: int | None = None,
        devices: Sequence[str] | None = None,
        gpu_layers: int | None = None,
        main_gpu: int | None = None,
        tensor_split: Sequence[float] | None = None,
        cpu_experts: int | None = None,
        flash_attention: FlashAttention | bool = "auto",
        kv_cache_type: CacheType = "f16",
        draft: Drafting = "auto",
        draft_model: str | os.PathLike[str] | None = None,
        image_cache_bytes: int = EngineConfig.image_cache_bytes,
        state_cache_bytes: int = EngineConfig.state_cache_bytes,
        prefix_store: str | os.PathLike[str] | bool = "off",
        prefix_store_bytes: int | None = None,
        mmap: bool = True,
        expert_cache_bytes: int | None = None,
        measure_kernels: bool = True,
        verify: bool = False,
        projector: str | os.PathLike[str] | None = None,
        progress: Callable[[int, int], None] | None = None,
        isolation: Literal["none", "process"] = "none",
    ) -> None:
        config = EngineConfig(
            num_ctx=num_ctx,
            parallel=parallel,
            max_queue=max_queue,
            batch_size=batch_size,
            threads=threads,
            devices=devices,
            gpu_layers=gpu_layers,
            main_gpu=main_gpu,
            tensor_split=tensor_split,
            cpu_experts=cpu_experts,
            flash_attention=flash_attention,
            kv_cache_type=kv_cache_type,
            draft=draft,
            draft_model=draft_model,
            image_cache_bytes=image_cache_bytes,
            state_cache_bytes=state_cache_bytes,
            prefix_store=prefix_store,  # type: ignore[arg-type]  # the config makes it a text
            prefix_store_bytes=prefix_store_bytes,
            measure_kernels=measure_kernels,
            mmap=mmap,
            expert_cache_bytes=expert_cache_bytes,
            verify=verify,
        )
        super().__init__()
        self._closed = False
        self._loaded = loaded = load(model, config, progress, projector=projector)
        try:
            self._monitor = Monitor(loaded.tokenizer.token_text)
            self._identity, self._memory = ModelIdentity(loaded.gguf), ModelMemory(loaded)
            self._core = core = EngineCore(
                loaded.executor, loaded.cache, config.parallel, self._monitor, verify=config.verify,
                images=loaded.image_reader,
            )  # fmt: skip
            # The engine's thread frees the model, when nothing can be computing with it any more.
            self._engine_thread = EngineThread(
                core, config.max_queue, os.path.basename(loaded.path), on_exit=self._memory.close, owner=self,
                files=loaded.weights.files, memory=self._memory,
                workers=loaded.backend if loaded.backend.workers else None,
            )  # fmt: skip
            self._submission = Submission(loaded, self._engine_thread)
            if config.prefix_store != "off":
                sessions.attach_prefix_store(loaded, self._identity, core, self._engine_thread)
        except BaseException:
            loaded.close()
            raise
        self._engine_thread.start()

    __new__.__wrapped__ = __init__  # type: ignore[attr-defined]  # what `help` and `inspect.signature` show

    # -- sessions ------------------------------------------------------------------------------------------------------

    def session(self) -> ollama_engine.Session:
        """A session: a text that grows by what is appended and answered, and stays in the cache meanwhile."""
        return ollama_engine.Session(self, self._ready(), self._identity)

    def load_session(self, path: str | os.PathLike[str]) -> ollama_engine.Session:
        """The session that `Session.save` wrote, with its keys and values.

        Raises OSError; SessionFormatError for a file that is damaged, or of another model or version;
        ContextOverflowError when its tokens are more than num_ctx, or sessions and requests hold the cells.
        """
        return sessions.load_session(self, self._ready(), self._identity, path)

    def _ready(self) -> Submission:
        self._open()
        return self._submission

    # -- looking inside ------------------------------------------------------------------------------------------------

    @property
    def metrics(self) -> MetricsSnapshot:
        """Counters, tokens/s, queue, cells and times of steps until now. Does not wait for a step."""
        return self._with_memory(lambda: self._core.metrics(self._engine_thread.coming))

    def slots(self) -> list[SlotInfo]:
        """The requests that are in the engine now, the oldest first."""
        self._open_here()
        return self._core.queue.slots()

    def cancel(self, request: int) -> bool:
        """End a request of any caller, by its number in `slots`: its caller gets a ClosedError. False where it is not
        there any more. Raises ConfigError for what is no number.
        """
        self._open_here()
        return self._core.queue.cancel(request)

    def set_priority(self, request: int, priority: int) -> bool:
        """Change the priority of a request of any caller, by its number in `slots`. Waits for the step in flight.

        False where the request is not there any more. Raises ConfigError for what is no number, or out of range.
        """
        self._open()
        task = EngineTask(lambda core: core.queue.set_priority(request, priority))
        self._engine_thread.do(task)
        return task.result()

    def steps(self, last: int = 256) -> list[StepRecord]:
        """The latest steps, the oldest first: their tokens, and when each phase began and ended."""
        self._open_here()
        return list(self._monitor.trace.steps()[-last:]) if last > 0 else []

    def trace(self) -> str:
        """Timeline of the latest steps and requests: JSON that a trace viewer (Perfetto, Chrome's) opens."""
        self._open_here()
        return self._monitor.trace.to_json()

    # -- text and ids --------------------------------------------------------------------------------------------------

    def tokenize(
        self, text: str | bytes | Sequence[Segment], *, add_special: bool = True, parse_special: bool = True
    ) -> list[int]:
        """Token ids of a text, or of a prompt in segments without media. Bytes need not be UTF-8.

        `add_special` adds the begin (and end) token where the model wants it; for a prompt in pieces pass False for
        all but the first. `parse_special` turns the text of control tokens into those tokens; segments say so
        themselves. Raises UnsupportedInputError for media.
        """
        if isinstance(text, (list, tuple)):
            return segment_ids(self._open(), text, add_special=add_special)
        text = cast("str | bytes", text)
        return self._open().tokenizer.encode(text, add_special=add_special, parse_special=parse_special)

    def detokenize(self, ids: Sequence[int]) -> str:
        """The text of token ids, control tokens left out, U+FFFD for bytes that are not UTF-8."""
        return self._open().tokenizer.decode(ids)

    def token_bytes(self, token: int) -> bytes:
        """The bytes of a token; for a control token its name. Raises TokenizerError for ids that do not exist."""
        return self._open().tokenizer.token_bytes(token, skip_special=False)

    # -- lifetime ------------------------------------------------------------------------------------------------------

    def _open(self) -> Loaded:
        if self._closed:
            raise ClosedError("this Engine is closed")
        return self._loaded

    @property
    def closed(self) -> bool:
        """Whether it takes no requests any more: after `close`, or because it closed itself after a fault."""
        return self._closed or self._engine_thread.closed

    def close(self) -> None:
        """End the running request, fail the waiting ones with ClosedError, and free all memory. Safe to call twice.

        Waits for the step in flight, however long it takes. Where a logits processor or a log handler keeps the
        engine's thread for 10 seconds, the log says where, and memory is freed when it returns.
        """
        self._closed = True
        self._engine_thread.close()

    def __enter__(self) -> Self:
        self._open()
        return self

    def __repr__(self) -> str:
        return f"Engine({self._loaded.path!r}{', closed' if self._closed else ''})"
