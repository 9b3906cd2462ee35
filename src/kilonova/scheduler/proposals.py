"""Proposed allocations: they count as used until they are claimed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager


class _Proposal:
    """What a candidate would allocate from one provider."""

    __slots__ = ("amounts", "host", "open", "provider", "until")

    def __init__(self, host: int, provider: int, amounts: Mapping[str, int], until: float) -> None:
        self.host = host
        self.provider = provider
        self.amounts = amounts
        self.until = until
        self.open = True


class Proposals:
    """A proposal counts until its claim shows in the database, or until it expires.

    Otherwise concurrent boots would all be sent to the same best host. A wrong count costs only a proposal, because the
    claim decides. Hosts and providers are provider ids. `count` is called with 1 when an amount begins to count on a
    provider, and with -1 when it ends.
    """

    def __init__(self, count: Callable[[int, Mapping[str, int], int], None]) -> None:
        self._count = count
        self._all: deque[_Proposal] = deque()
        self._by_provider: dict[int, deque[_Proposal]] = {}

    def __bool__(self) -> bool:
        return bool(self._by_provider)

    def add(self, host: int, allocations: Mapping[int, Mapping[str, int]], until: float) -> None:
        """`host` is the candidate's root provider; the allocations need not include it."""
        for provider, amounts in allocations.items():
            proposal = _Proposal(host, provider, amounts, until)
            self._all.append(proposal)
            self._by_provider.setdefault(provider, deque()).append(proposal)
            self._count(provider, amounts, 1)

    def expire(self, now: float) -> None:
        while self._all and (not self._all[0].open or self._all[0].until <= now):
            proposal = self._all.popleft()
            if proposal.open:
                self._end(proposal)

    def end_oldest(self, provider: int, number: int) -> None:
        """End so many of a provider's proposals: they were claimed, or given up."""
        waiting = self._by_provider.get(provider)
        while waiting and number > 0:
            self._end(waiting[0])
            number -= 1

    def discard(self, host: int, providers: Iterable[int]) -> None:
        """End the oldest proposal of a host on each of these providers."""
        for provider in providers:
            found = next((one for one in self._by_provider.get(provider, ()) if one.host == host), None)
            if found is not None:
                self._end(found)

    def drop(self, provider: int) -> None:
        self.end_oldest(provider, len(self._by_provider.get(provider, ())))

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Count only claimed allocations inside the block."""
        proposals = [proposal for waiting in self._by_provider.values() for proposal in waiting]
        for proposal in proposals:
            self._count(proposal.provider, proposal.amounts, -1)
        try:
            yield
        finally:
            for proposal in proposals:
                self._count(proposal.provider, proposal.amounts, 1)

    def _end(self, proposal: _Proposal) -> None:
        waiting = self._by_provider[proposal.provider]
        waiting.remove(proposal)
        if not waiting:
            del self._by_provider[proposal.provider]
        proposal.open = False
        self._count(proposal.provider, proposal.amounts, -1)
