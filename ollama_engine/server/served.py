"""ServedModel: what the APIs see of a loaded model, in this process or in one of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from ollama_engine.ml.device.memory import DeviceMemory
    from ollama_engine.runner.chat.results import ChatChunk
    from ollama_engine.runner.embed.results import Embedding
    from ollama_engine.runner.embed.texts import Written
    from ollama_engine.runner.observe.monitor import SlotInfo
    from ollama_engine.runner.observe.trace import StepRecord
    from ollama_engine.runner.request.prompts import Images, Prompt
    from ollama_engine.runner.request.results import Chunk
    from ollama_engine.sample import SamplingParams
    from ollama_engine.segments import Segment
    from ollama_engine.store.stored_model import StoredModel

__all__ = ["AnswerStream", "ModelFacts", "ServedModel"]

Chunk_co = TypeVar("Chunk_co", covariant=True)


class AnswerStream(Protocol[Chunk_co]):
    """Chunks of one answer, for `async for`. Closing it cancels the request at the engine's next step."""

    def __aiter__(self) -> AsyncIterator[Chunk_co]:
        """The chunks, once."""

    def __anext__(self) -> Awaitable[Chunk_co]:
        """The next chunk; the last has `finish_reason` and `usage`."""

    async def aclose(self) -> None:
        """Cancel the request if it has not ended. Safe to call twice."""


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """Facts of a loaded model, which do not change.

    Attributes:
        architecture: `general.architecture` of its file.
        num_ctx: tokens that one request may hold.
        context_length: tokens that it was trained for.
        n_embd: length of an embedding; None for a model that gives none.
        n_parameters: numbers in all of its tensors.
        parallel: requests computed side by side.
        capabilities: of "completion", "embedding", "vision", "tools", "thinking", "insert".
        memory_bytes: what the model takes, weights, cache and graphs.
        device_bytes: of these on GPUs and workers.
        devices: the same by device and purpose, the CPU last.
        system: the devices in use and their features, in one line.
    """

    architecture: str
    num_ctx: int
    context_length: int
    n_embd: int | None
    n_parameters: int
    parallel: int
    capabilities: frozenset[str]
    memory_bytes: int
    device_bytes: int
    devices: tuple[DeviceMemory, ...] = ()
    system: str = ""


class ServedModel(Protocol):
    """A loaded model. All methods may be called by any number of tasks of the server's event loop.

    Errors are those of `ollama_engine.errors`, as `Engine`'s methods of like names raise them; with an engine in a
    process of its own also ModelProcessError, where that process has ended.
    """

    @property
    def stored(self) -> StoredModel:
        """The stored model that was loaded."""

    @property
    def facts(self) -> ModelFacts:
        """Its facts, which do not change."""

    def generate(
        self, prompt: Prompt, params: SamplingParams, *, images: Images = None, **options: Any
    ) -> AnswerStream[Chunk]:
        """`Engine.astream`."""

    def chat(self, messages: Sequence[object], params: SamplingParams, **options: Any) -> AnswerStream[ChatChunk]:
        """`Engine.achat_stream`, with the stored model's template where it has one of its own."""

    async def embed(
        self, texts: Sequence[Prompt], *, normalize: bool, dimensions: int | None, truncate: bool,
        prompt_name: str | None = None, task: str | None = None,
    ) -> list[Embedding]:  # fmt: skip
        """`Engine.aembeddings`."""

    async def rank(self, query: str, documents: Sequence[Written]) -> list[float]:
        """`Engine.arank`."""

    async def tokenize(
        self, text: str | Sequence[Segment], *, add_special: bool = True, parse_special: bool = True
    ) -> list[int]:
        """`Engine.tokenize`."""

    async def detokenize(self, ids: Sequence[int]) -> str:
        """`Engine.detokenize`."""

    async def token_bytes(self, ids: Sequence[int]) -> list[bytes]:
        """`Engine.token_bytes` of each: what each token adds to a text, control tokens as their names."""

    async def apply_template(self, messages: Sequence[object], **options: Any) -> list[Segment]:
        """`Engine.apply_template`, with the stored model's template where it has one of its own."""

    async def metrics(self) -> Mapping[str, Any]:
        """`Engine.metrics` as plain data: numbers, texts, lists and dicts."""

    async def slots(self) -> list[SlotInfo]:
        """`Engine.slots`."""

    async def steer(self, request: int, priority: int | None) -> bool:
        """`Engine.set_priority`, or `Engine.cancel` where the priority is None."""

    async def steps(self, last: int) -> list[StepRecord]:
        """`Engine.steps`."""

    async def trace(self) -> str:
        """`Engine.trace`."""
