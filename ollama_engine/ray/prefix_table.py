"""PrefixTable: which replica has computed which beginnings of prompts, and where the next prompt goes. Pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from hashlib import blake2b

__all__ = ["PrefixTable"]

BALANCE = 1.25
"""How many times the mean of all replicas one may have to do before prompts that it knows go elsewhere."""

CAPACITY = 1 << 16
"""Beginnings that are remembered: 20 MB."""


class PrefixTable:
    """Remembers where prompts went, and ranks replicas for the next: the longest known beginning first.

    A replica that has more than its share to do comes behind those that have not, however much it knows: so one system
    message that all share does not bring all requests to one replica. What a replica has evicted is not known here;
    a wrong guess costs the prompt's computation, and no more.

    Args:
        slack: requests above its share that a replica may have.
        capacity: beginnings that are remembered, those used last.
    """

    def __init__(self, *, slack: int = 2, capacity: int = CAPACITY) -> None:
        self._slack = slack
        self._capacity = capacity
        self._holders: OrderedDict[bytes, set[str]] = OrderedDict()

    def ranked(self, chain: Sequence[bytes], running: Mapping[str, int]) -> list[str]:
        """All replicas, the best for this prompt first. `running`: requests of each replica."""
        share = BALANCE * (sum(running.values()) + 1) / max(1, len(running)) + self._slack
        known = self.matches(chain)

        def rank(name: str) -> tuple[bool, int, int, bytes]:
            busy = running[name] >= share
            # Routers that know nothing of each other agree where nothing else decides.
            drawn = blake2b(name.encode() + (chain[0] if chain else b""), digest_size=8).digest()
            return busy, -known.get(name, 0), running[name], drawn

        return sorted(running, key=rank)

    def matches(self, chain: Sequence[bytes]) -> dict[str, int]:
        """For each replica that knows any of it, how many blocks of a prompt it has computed."""
        lengths: dict[str, int] = {}
        for number, block in enumerate(chain, 1):
            holders = self._holders.get(block)
            if not holders:
                break
            lengths |= dict.fromkeys(holders, number)
        return lengths

    def remember(self, chain: Sequence[bytes], name: str) -> None:
        """That this replica computes a prompt."""
        for block in reversed(chain):  # a beginning is used as often as what goes on from it: it leaves later
            self._holders.setdefault(block, set()).add(name)
            self._holders.move_to_end(block)
        while len(self._holders) > self._capacity:
            self._holders.popitem(last=False)

    def keep_only(self, names: set[str]) -> None:
        """Forget what replicas knew that are gone."""
        for block in [block for block, holders in self._holders.items() if not holders <= names]:
            self._holders[block] &= names
            if not self._holders[block]:
                del self._holders[block]
