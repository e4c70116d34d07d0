"""ReplicaModel: a served model whose engines are replicas on Ray."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ray.exceptions import RayActorError
from ray.serve.exceptions import DeploymentUnavailableError

from ollama_engine.errors import ClosedError, ConfigError, EngineBusyError, ModelProcessError
from ollama_engine.ray.prompt_chain import prompt_chain
from ollama_engine.server.isolation.called_model import CalledModel, chunk_of
from ollama_engine.server.isolation.codec import decode
from ollama_engine.server.isolation.failures import error_of

if TYPE_CHECKING:
    from ray.serve.handle import DeploymentHandle

    from ollama_engine.ray.replica import ModelWish
    from ollama_engine.runner.observe.monitor import SlotInfo
    from ollama_engine.runner.observe.trace import StepRecord
    from ollama_engine.server.isolation.formats import FormatAtHome
    from ollama_engine.server.served import ModelFacts
    from ollama_engine.store.stored_model import StoredModel

__all__ = ["ReplicaModel", "added", "send"]

ATTEMPTS = 5
"""Replicas that a request is given to before it fails, where each ends before anything of the answer has come."""

PAUSE_SECONDS = 0.2
"""Before a further attempt, times its number."""

ENDED = "the replica that computed this answer has ended"


class ReplicaModel(CalledModel):
    """`ServedModel` over the replicas of a deployment.

    A replica that ends takes its requests with it. Those of whose answer nothing has come are sent to another; others
    end with ModelProcessError: what the client has seen cannot be written again.
    """

    def __init__(self, engines: DeploymentHandle, wish: ModelWish, stored: StoredModel, facts: ModelFacts) -> None:
        super().__init__(stored, facts)
        self._engines = engines
        self._wish = wish

    async def _chunks(self, body: Mapping[str, Any], answer_format: FormatAtHome) -> AsyncGenerator[Any, None]:
        chain = _chain(self._wish, body)
        for attempt in range(1, ATTEMPTS + 1):
            begun = finished = False
            answer = self._engines.options(method_name="stream", stream=True).remote(self._wish, body, chain=chain)
            try:
                async for line in answer:
                    chunk = chunk_of(line, answer_format)
                    begun, finished = True, chunk.finish_reason is not None
                    yield chunk
                if not finished:
                    raise ModelProcessError(ENDED, advice=["send the request again"])
                return
            except RayActorError as error:
                if begun or attempt == ATTEMPTS:
                    raise ModelProcessError(ENDED, advice=["send the request again"]) from error
            except DeploymentUnavailableError as error:
                raise ClosedError("the engines are being stopped") from error
            finally:
                if not finished:
                    answer.cancel()
            await asyncio.sleep(PAUSE_SECONDS * attempt)

    async def _result(self, body: Mapping[str, Any]) -> Any:
        sent = await send(self._engines, "call", self._wish, body, chain=_chain(self._wish, body))
        return sent["result"]

    async def _of_all(self, method: str, *args: Any) -> list[Any]:
        """The results of all replicas that have the model loaded; those that end meanwhile give none."""
        body = {"method": method, "args": list(args), "kwargs": {}}
        with suppress(DeploymentUnavailableError):
            answers = self._engines.broadcast("call_if_loaded", self._wish, body)
            results = await answers.results_async(return_exceptions=True)
            return [decode(sent["result"]) for sent in results if isinstance(sent, dict) and "result" in sent]
        return []

    async def metrics(self) -> Mapping[str, Any]:
        """Those of all replicas, added up."""
        total: Any = None
        for values in await self._of_all("metrics"):
            total = values if total is None else added(total, values)
        if total is None:
            raise EngineBusyError("no replica has the model loaded yet")
        metrics: Mapping[str, Any] = total
        return metrics

    async def slots(self) -> list[SlotInfo]:
        """The requests in all replicas."""
        return [slot for slots in await self._of_all("slots") for slot in slots]

    async def steer(self, request: int, priority: int | None) -> bool:
        """Raises ConfigError: each replica numbers its own requests, and they come and go."""
        raise ConfigError("requests of replicas are not steered: their numbers are those of each replica")

    async def steps(self, last: int) -> list[StepRecord]:
        """The latest steps of each replica, one replica after the other."""
        return [step for steps in await self._of_all("steps", last) for step in steps]


async def send(engines: DeploymentHandle, method: str, *args: Any, chain: Sequence[bytes]) -> dict[str, Any]:
    """The result of a replica's method. Raises the error it says; ModelProcessError where replicas keep ending.

    Cancelling this cancels the request: Ray by itself has the replica go on.
    """
    for attempt in range(1, ATTEMPTS + 1):
        answer = engines.options(method_name=method).remote(*args, chain=list(chain))
        try:
            result: dict[str, Any] = await answer
        except asyncio.CancelledError:
            answer.cancel()
            raise
        except RayActorError as error:
            if attempt == ATTEMPTS:
                raise ModelProcessError(ENDED, advice=["send the request again"]) from error
        except DeploymentUnavailableError as error:
            raise ClosedError("the engines are being stopped") from error
        else:
            if "$failure" in result:
                raise error_of(result["$failure"])
            return result
        await asyncio.sleep(PAUSE_SECONDS * attempt)
    raise AssertionError("the last attempt returns or raises")


def _chain(wish: ModelWish, body: Mapping[str, Any]) -> list[bytes]:
    prompt = body["args"][0] if body["method"] in ("generate", "chat") else []
    return prompt_chain(wish.name, prompt, body["kwargs"])


def added(left: Any, right: Any) -> Any:
    """Metrics of two replicas as those of one: numbers are added, all the way down; of other values the first stays."""
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        both = {name: _joined(name, left[name], right[name]) for name in left if name in right}
        return {**left, **right, **both}
    if isinstance(left, list) and isinstance(right, list) and len(left) == len(right):
        return [added(a, b) for a, b in zip(left, right, strict=True)]
    if isinstance(left, (int, float)) and isinstance(right, (int, float)) and not isinstance(left, bool):
        return left + right
    return left


def _joined(name: str, left: Any, right: Any) -> Any:
    if name == "bounds":  # of a histogram
        return left
    return max(left, right) if name == "maximum" else added(left, right)
