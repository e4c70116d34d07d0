"""Bodies of OpenAI's requests. Fields that are not named here are taken too, and do nothing: the log names them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from ollama_engine.server.errors import ApiError
from ollama_engine.server.openai.formats import FormatFields
from ollama_engine.server.requests.embedding_inputs import EmbeddingInput
from ollama_engine.server.requests.schemas import MOST_MESSAGES, ChatMessage, Schema

__all__ = ["ChatRequest", "CompletionRequest", "EmbeddingsRequest", "Reasoning", "SamplingFields", "StreamOptions"]

TokenIds = list[Annotated[int, Field(ge=0, le=2**31 - 1)]]
MOST_BIASES = 1 << 14
"""Tokens of a `logit_bias`. Each takes a microsecond or two of the event loop's time."""
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


class StreamOptions(Schema):
    """Options of a stream beside the answer."""

    include_usage: bool | None = Field(None, description="end the stream with an event that counts tokens")


class Reasoning(Schema):
    """How much the model thinks before it answers."""

    effort: Effort | None = None


class SamplingFields(Schema):
    """How tokens are chosen. Those that OpenAI's API lacks have the engine's names and meanings.

    -1 is Ollama's and llama.cpp's word for no limit of tokens, and vLLM's for no limit of `top_k`.
    """

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    typical_p: float | None = None
    repeat_penalty: float | None = None
    repeat_last_n: int | None = None
    repetition_penalty: float | None = Field(None, description="vLLM's name of repeat_penalty, over all tokens")
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    logit_bias: dict[str, float] | None = None
    max_tokens: int | None = None

    def sampling(self) -> dict[str, Any]:
        """The fields as SamplingParams have them."""
        sampling = {name: getattr(self, name) for name in SamplingFields.model_fields}
        sampling["logit_bias"] = token_biases(self.logit_bias)
        sampling["top_k"] = 0 if self.top_k == -1 else self.top_k
        sampling["max_tokens"] = None if self.max_tokens == -1 else self.max_tokens
        sampling["seed"] = None if self.seed is None else self.seed % (1 << 64)
        del sampling["repetition_penalty"]
        return sampling | self._penalty_of_all()

    def _penalty_of_all(self) -> dict[str, Any]:
        """`repetition_penalty` in the engine's words; empty where there is none."""
        if self.repetition_penalty is None:
            return {}
        if self.repeat_penalty is not None:
            twice = "repeat_penalty and repetition_penalty are the same; leave one of them out"
            raise ApiError(400, twice, param="repetition_penalty")
        reach = -1 if self.repeat_last_n is None else self.repeat_last_n
        return {"repeat_penalty": self.repetition_penalty, "repeat_last_n": reach}


class ChatRequest(SamplingFields, FormatFields):
    """POST /v1/chat/completions."""

    model: str
    messages: list[ChatMessage] = Field(max_length=MOST_MESSAGES)
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = Field(None, ge=1, le=128)
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=20)
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: Effort | None = None
    reasoning: Reasoning | None = None
    chat_template_kwargs: dict[str, Any] | None = Field(None, description="variables of the chat template")
    user: str | None = None


class CompletionRequest(SamplingFields, FormatFields):
    """POST /v1/completions."""

    model: str
    prompt: str | list[str] | TokenIds | list[TokenIds] = ""
    suffix: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = Field(None, ge=1, le=128)
    best_of: int | None = Field(None, ge=1, le=128)
    echo: bool | None = None
    logprobs: int | None = Field(None, ge=0, le=20)
    user: str | None = None


class EmbeddingsRequest(Schema):
    """POST /v1/embeddings."""

    model: str
    input: str | list[str] | TokenIds | list[TokenIds] | EmbeddingInput | list[str | EmbeddingInput] | None = Field(
        None, description='a text, token ids, {"text": ..., "image": ...}, or several of these'
    )
    messages: list[ChatMessage] | None = Field(
        None, max_length=MOST_MESSAGES, description="a conversation, which is one text, as in vLLM's API"
    )
    add_generation_prompt: bool = Field(False, description="whether `messages` end with the beginning of an answer")
    continue_final_message: bool = Field(False, description="whether the last of `messages` goes on")
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = Field(None, ge=1)
    prompt_name: str | None = Field(None, description="what comes before each text, such as query")
    task: str | None = Field(None, description="the adapter that computes the texts, as in Jina's API")
    user: str | None = None


def token_biases(given: dict[str, float] | None) -> dict[int, float] | None:
    """logit_bias with whole numbers as keys, which JSON lacks. Raises ApiError for other keys, and for too many.

    -100, the least that OpenAI's API knows, bans a token there; so it does here.
    """
    if given is None:
        return None
    if len(given) > MOST_BIASES:
        raise ApiError(
            400, f"logit_bias: it has {MOST_BIASES} tokens at most, got {len(given)}", param="logit_bias"
        )  # fmt: skip
    biases: dict[int, float] = {}
    for token, bias in given.items():
        if not (token.isascii() and token.isdigit()):
            raise ApiError(400, f"logit_bias: its keys are token ids, got {token!r:.40}", param="logit_bias")
        biases[int(token[:12])] = float("-inf") if bias <= -100 else bias
    return biases
