"""Loads a model: plans the memory, takes it, and reads the weights.

Loading succeeds or fails as a whole: when any step raises, everything taken before is freed.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING

from ollama_engine.config import EngineConfig
from ollama_engine.errors import ConfigError, ModelFormatError, NoMemoryError, Option
from ollama_engine.kvcache import Cache
from ollama_engine.ml.device.device_info import system_line
from ollama_engine.ml.device.placement import BackendParams
from ollama_engine.ml.gguf.gguf_file import IMAGE_PARTS, SOUND_PARTS, GGUFFile
from ollama_engine.ml.graph.backend import Backend
from ollama_engine.ml.weights.kernel_choice import KernelChoice, kernels_of
from ollama_engine.ml.weights.weight_plan import OUTPUT, TIED
from ollama_engine.ml.weights.weights import Weights
from ollama_engine.models import (
    EmbedsImages,
    FitsContext,
    Model,
    TextEncoder,
    model_class,
    ties_output,
)
from ollama_engine.runner.execute.best_logits import BestLogits, make_best_logits
from ollama_engine.runner.execute.executor import Executor
from ollama_engine.runner.load.caches import make_encoder, make_model_cache, make_text_executor
from ollama_engine.runner.load.draft_parts import DraftParts, load_draft, open_draft, states_giver
from ollama_engine.runner.load.errors import does_not_fit, naming, warn_of_unused
from ollama_engine.runner.load.expert_memory import plan_experts
from ollama_engine.runner.load.fit import DeviceChoice
from ollama_engine.runner.load.head_parts import HeadParts, load_head, uses_head, without_head
from ollama_engine.runner.load.kernels import choose_kernels, rows_are_alike
from ollama_engine.runner.load.memory_plan import (
    batch_size_of,
    memory_report,
    num_ctx_of,
    plan_cache,
    plan_masks,
    refuse_cache_if_too_large,
)
from ollama_engine.runner.load.pooling_type import read_pooling
from ollama_engine.runner.load.projector import JoinedFile, known_metadata, with_projector
from ollama_engine.runner.load.serving_memory import graph_bounds, image_bounds, prefix_bounds, text_bounds
from ollama_engine.runner.load.sizes import LOGIT_ROWS, max_nodes
from ollama_engine.runner.load.source import NO_DEFAULTS, ModelDefaults, ModelSource
from ollama_engine.runner.load.vision import ImageVectors, make_image_reader, make_image_vectors, reads_media, traits_of
from ollama_engine.runner.media.image_reader import ImageReader, PromptImageReader
from ollama_engine.sample import BreakerFinder
from ollama_engine.tokenizer import Tokenizer, from_metadata

if TYPE_CHECKING:
    from ollama_engine.ml.device.memory import MemoryReport
    from ollama_engine.ml.device.placement_plan import PlacementPlan

log = logging.getLogger(__name__)

Progress = Callable[[int, int], None]

TIGHTEST = 2
"""How often a plan that did not come true is followed by one that leaves more memory free."""


@dataclass(slots=True)
class Loaded:
    """The parts of a loaded model. `close` frees them in the right order."""

    path: str
    config: EngineConfig
    gguf: GGUFFile
    tokenizer: Tokenizer
    backend: Backend
    weights: Weights
    model: Model
    cache: Cache
    executor: Executor
    breakers: BreakerFinder
    is_encoder: bool
    """Whether the model is a text encoder. Checked once, here: an interrupt during isinstance of a Protocol is lost."""
    images: PromptImageReader | None = None
    """Makes media items of image files; None where the model or its file has no part that reads images."""
    text_executor: Executor | None = None
    """Computes hidden states of texts to embed, without a cache; None for a model that gives no hidden states."""
    image_vectors: ImageVectors | None = None
    """Computes vectors of images; None for a model that gives none."""
    placement: PlacementPlan | None = None
    """The plan of which layer goes on which device; None without a GPU."""
    serving: Mapping[str, int] = field(default_factory=dict)
    """Most bytes that serving takes on top, by purpose."""
    draft: DraftParts | None = None
    """The draft model."""
    head: HeadParts | None = None
    """The model's own head for drafts."""
    defaults: ModelDefaults = NO_DEFAULTS
    """What its Modelfile says of calls, where it is a model of the store."""

    @property
    def num_ctx(self) -> int:
        """Most tokens of one request, prompt and answer."""
        return num_ctx_of(self.config)

    @property
    def drafts_exactly(self) -> bool:
        """Whether rows of a draft get the bits that they get alone."""
        on_cpu = self.placement is None or not self.placement.gpu_layers
        alike = rows_are_alike(kernels_of(self.backend), without_head(self.weights), self.executor.max_outputs)
        return on_cpu and alike

    @property
    def image_reader(self) -> ImageReader | None:
        """The reader of images, of prompts or alone; None for models that read none."""
        return self.images if self.image_vectors is None else self.image_vectors.reader

    def memory(self) -> MemoryReport:
        """The memory taken, by device and layer."""
        cache = self.cache
        states = {} if cache.recurrent is None else cache.recurrent.nbytes
        nbytes, masks = Counter(cache.nbytes), cache.mask_bytes
        if self.head is not None:
            nbytes.update(self.head.cache.nbytes)
            masks += self.head.cache.mask_bytes
        report = memory_report(self.backend, self.weights, nbytes, masks, self.placement, self.serving, states)
        return report if self.draft is None else self.draft.beside(report)

    def close(self) -> None:
        """Free cache, weights and backend, and unmap the file. No step may be in flight."""
        if self.text_executor is not None:
            self.text_executor.close()
        for executor in _executors(self.draft, self.head):
            executor.close()
        self.executor.close()
        self.backend.close()
        # Not before the backend, which unmaps the files.
        if self.draft is not None:
            self.draft.weights.close()
            self.draft.gguf.close()
        self.weights.close()
        self.gguf.close()


def _executors(*drafting: DraftParts | HeadParts | None) -> list[Executor]:
    return [executor for parts in drafting if parts is not None for executor in parts.executors]


def load(
    source: str | os.PathLike[str] | GGUFFile,
    config: EngineConfig,
    progress: Progress | None = None,
    *,
    logit_rows: int = LOGIT_ROWS,
    projector: str | os.PathLike[str] | None = None,
    kernels: KernelChoice | None = None,
) -> Loaded:
    """Load a model from a path, by its name, or from its open file, which is closed with it or when this fails.

    `progress` is called with (bytes done, bytes in all) while weights are read. `projector`: path of the model's part
    that reads images, where that is a file of its own.

    A step computes up to `logit_rows` rows of logits, or one for each of `config.parallel` sequences if that is more.
    `kernels`: which the CPU uses, `GGML` to compare ours with ggml's; None: as `choose_kernels` says.

    Raises OSError, ModelFormatError, UnsupportedModelError, ConfigError, NoMemoryError with the report.
    """
    path, projector, config, defaults = ModelSource.of(source, projector, config)
    _check_progress(progress)
    with naming(path), contextlib.ExitStack() as undo:
        gguf = opened(source if isinstance(source, GGUFFile) else path, projector, undo)
        kernels = kernels if kernels is not None else choose_kernels(gguf, config)
        draft = open_draft(config, undo)
        loaded = _load_fitting(path, gguf, config, progress, logit_rows, kernels, draft)
        undo.pop_all()
    loaded.defaults = defaults
    return loaded


def _load_fitting(
    path: str, gguf: GGUFFile, config: EngineConfig, progress: Progress | None, logit_rows: int, kernels: KernelChoice,
    draft: GGUFFile | None,
) -> Loaded:  # fmt: skip
    """Load by a plan. Where a GPU grants less than was planned, once more by a plan that leaves more free there."""
    for tight in range(TIGHTEST):
        choice = DeviceChoice(gguf, config, tight=tight)
        try:
            return _load_planned(path, gguf, config, progress, logit_rows, choice, kernels, draft)
        except NoMemoryError as error:
            if not choice.can_shrink:
                raise
            log.warning("the model did not fit as planned, less of it goes on GPUs: %s", error)
    choice = DeviceChoice(gguf, config, tight=TIGHTEST)
    return _load_planned(path, gguf, config, progress, logit_rows, choice, kernels, draft)


def _load_planned(
    path: str, gguf: GGUFFile, config: EngineConfig, progress: Progress | None, logit_rows: int, choice: DeviceChoice,
    kernels: KernelChoice, draft_file: GGUFFile | None,
) -> Loaded:  # fmt: skip
    metadata = known_metadata(gguf)
    factory = model_class(metadata.architecture)
    tokenizer = from_metadata(gguf.metadata)
    nodes = max(max_nodes(file) for file in (gguf, draft_file) if file is not None)
    with contextlib.ExitStack() as undo:
        try:
            backend = undo.enter_context(
                Backend(backend_params(config), max_nodes=nodes, choose=choice, kernels=kernels)
            )
        except NoMemoryError as error:
            raise does_not_fit(path, error, error.report) from error
        log.info("backend: %s", system_line(backend.devices, backend.threads),
                 extra={"devices": backend.devices, "threads": backend.threads})  # fmt: skip
        alone = len(backend.devices) == 1
        weights = undo.enter_context(Weights(
            backend, gguf, choice.placement, tied=ties_output(factory), head=uses_head(gguf, config, cpu_alone=alone),
            expert_bytes=plan_experts(gguf, config, cpu_alone=alone, loads=True)))  # fmt: skip
        planned_cache, planned_masks = dict[str, int](), 0
        try:
            weights.load(progress)
            model = factory(metadata, without_head(weights))
            _check_model(model, gguf)
            config = config.for_model(model.context_length)
            _fit_context(model, config)
            image_vectors = make_image_vectors(backend, model, config.image_cache_bytes)
            text_executor, head = None, None
            if image_vectors is not None or isinstance(model, TextEncoder):
                read_pooling(metadata)  # raises for an unknown number
                cache, executor = make_encoder(backend, model, config, causal=metadata.bool("attention.causal", False))
                text_executor = executor if isinstance(model, TextEncoder) else None
            else:
                planned_cache = plan_cache(backend, weights, model, config)
                planned_masks = plan_masks(model, config)
                refuse_cache_if_too_large(backend, planned_cache, planned_masks)
                cache = make_model_cache(backend, weights, model, config)
                head = load_head(backend, weights, model, config)
                rows = max(logit_rows, config.parallel)
                executor = Executor(
                    backend, model, cache, batch_size_of(config), rows, traits=traits_of(model),
                    best_logits=_make_best_logits(backend, weights, model, tokenizer),
                    splits=states_giver(draft_file, model, head=head is not None),
                )  # fmt: skip
                text_executor = make_text_executor(backend, model, config)
            images = make_image_reader(backend, model, config.image_cache_bytes)
            if image_vectors is None or text_executor is not None:
                executor.reserve(config.parallel)
            for contract in (cache.shiftable, cache.saveable, cache.defragmentable):
                if contract is not None:
                    contract.reserve()
            draft = None if draft_file is None else load_draft(backend, draft_file, weights, model, cache, config, undo)
            # Last: repacked copies are optional, and everything else must have its memory first.
            weights.repack()
            reader = images if image_vectors is None else image_vectors.reader
            serving = image_bounds(model, config, None if reader is None else reader.memory)
            serving |= graph_bounds(executor, text_executor, *_executors(draft, head))
            texts = None if isinstance(model, TextEncoder) else text_executor
            serving |= text_bounds(backend, texts, config, backend.graph_bytes()) | prefix_bounds(model, config)
        except NoMemoryError as error:
            report = error.report or memory_report(backend, weights, planned_cache, planned_masks, choice.plan)
            raise does_not_fit(gguf.path, error, report) from error
        undo.pop_all()
    return Loaded(
        path, config, gguf, tokenizer, backend, weights, model, cache, executor,
        BreakerFinder(min(model.n_vocab, tokenizer.n_vocab), tokenizer), isinstance(model, TextEncoder | EmbedsImages),
        images, text_executor, image_vectors, choice.plan, serving, draft, head,
    )  # fmt: skip


def opened(
    source: str | GGUFFile, projector: str | os.PathLike[str] | None, undo: contextlib.ExitStack
) -> GGUFFile:  # fmt: skip
    """The model's file, or its two; `undo` closes them."""
    gguf = undo.enter_context(source if isinstance(source, GGUFFile) else GGUFFile(source))
    if projector is None:
        return gguf
    return undo.enter_context(with_projector(gguf, os.fspath(projector)))


def _check_progress(progress: object) -> None:
    if progress is not None and not callable(progress):
        raise ConfigError(Option("progress"), f" is a function of (bytes done, bytes in all), got {progress!r:.80}")


def backend_params(config: EngineConfig) -> BackendParams:
    """The part of the options that is about devices."""
    return BackendParams(**{option.name: getattr(config, option.name) for option in fields(BackendParams)})


def _make_best_logits(backend: Backend, weights: Weights, model: Model, tokenizer: Tokenizer) -> BestLogits | None:
    devices = weights.plan.devices
    device = backend.devices[devices.get(OUTPUT, devices.get(TIED, weights.plan.cpu))]
    return make_best_logits(device, model.n_vocab, min(model.n_vocab, tokenizer.n_vocab))


def _fit_context(model: Model, config: EngineConfig) -> None:
    """Tell the model how long texts may be, and warn of more than it was trained for."""
    if isinstance(model, FitsContext):
        model.fit_context(num_ctx_of(config))
    if num_ctx_of(config) > model.context_length:
        log.warning("num_ctx %d is more than the %d tokens the model was trained for; answers get worse beyond them",
                    num_ctx_of(config), model.context_length)  # fmt: skip


def _check_model(model: Model, gguf: GGUFFile) -> None:
    if model.n_vocab < 1 and not isinstance(model, EmbedsImages):
        raise ModelFormatError("the model has no vocabulary")
    unused = list(model.unused_weights)
    if any(name.startswith(SOUND_PARTS) for name in unused):
        log.warning("the file has a part that reads sound, which is not supported: it is left aside")
        unused = [name for name in unused if not name.startswith(SOUND_PARTS)]
    images = [name for name in unused if name.startswith(IMAGE_PARTS)]
    if images and reads_media(model) is None and not isinstance(model, EmbedsImages):
        if isinstance(gguf, JoinedFile):
            raise ModelFormatError(
                f"the projector has no tensor of patches that {gguf.architecture} reads, but {', '.join(images[:4])}; "
                "it is damaged, or of another model"
            )
        log.warning("the file has a part that reads images, which is not supported yet: it answers text only")
        unused = [name for name in unused if name not in images]
    warn_of_unused(unused, gguf.architecture)
