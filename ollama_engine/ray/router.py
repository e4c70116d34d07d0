"""PrefixRouter: has Ray Serve send requests to the replica that holds their prefix."""

from __future__ import annotations

from asyncio import Future
from collections import Counter
from typing import Any
from weakref import WeakSet

from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from ollama_engine.ray.prefix_table import PrefixTable

__all__ = ["PrefixRouter"]


class PrefixRouter(RequestRouter):
    """Ray Serve's router of the deployment of engines. Calls say what they begin with by `chain=`; see prompt_chain.

    One for each process that sends requests. Ray calls all its methods on one event loop.
    """

    def initialize_state(self, *, slack: int = 2, **_: Any) -> None:
        """`slack`: requests above its share that a replica may have for the sake of its prefixes."""
        self._table = PrefixTable(slack=slack)
        # Ray's own numbers expire after ten seconds, and many answers take longer.
        self._sent: Counter[str] = Counter()
        # Of many requests that come at once, each sees where those before it go, though none is sent yet.
        self._chosen: Counter[str] = Counter()
        self._counted: WeakSet[Future[Any]] = WeakSet()

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """Every replica, in the order of `PrefixTable.ranked`; Ray takes the first that accepts the request."""
        replicas = {replica.replica_id.unique_id: replica for replica in candidate_replicas}
        running = {name: self._sent[name] + self._chosen[name] for name in replicas}
        chain = [] if pending_request is None else pending_request.kwargs.get("chain") or []
        order = self._table.ranked(chain, running)
        if pending_request is not None and order:
            pending_request.routing_context.should_backoff = True
            self._table.remember(chain, order[0])
            self._count(pending_request.future, order[0])
        return [[replicas[name]] for name in order]

    def _count(self, future: Future[Any], name: str) -> None:
        """Count a request until it is sent, which wakes the sender before this."""
        if future in self._counted or future.done():
            return
        self._counted.add(future)
        self._chosen[name] += 1
        future.add_done_callback(lambda _: self._chosen.subtract((name,)))

    def on_send_request(self, replica_id: ReplicaID) -> None:
        """Count a request that is sent."""
        super().on_send_request(replica_id)
        self._sent[replica_id.unique_id] += 1

    def on_request_completed(self, replica_id: ReplicaID, internal_request_id: str) -> None:
        """Count a request that has ended, however it did."""
        super().on_request_completed(replica_id, internal_request_id)
        if self._sent[replica_id.unique_id] > 0:  # Ray tells of requests that could not be sent, too
            self._sent[replica_id.unique_id] -= 1

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        """Forget replicas that are gone."""
        super().update_replicas(replicas)
        names = {replica.replica_id.unique_id for replica in replicas}
        self._table.keep_only(names)
        for name in set(self._sent) - names:
            del self._sent[name]
