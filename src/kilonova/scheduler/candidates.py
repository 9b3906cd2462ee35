"""Plans and their candidates, and the claim of a candidate in a transaction."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from kilonova.placement import ClaimOutcome, Consumer, ConsumerHasAllocations, SnapshotVersion, try_claim
from kilonova.scheduler.explain import Diagnosis
from kilonova.store import Transaction


class Candidate(msgspec.Struct, frozen=True, array_like=True):
    """A hypervisor, by the uuid of its root provider, and the allocations to claim."""

    uuid: str
    host: str
    hypervisor_hostname: str
    allocations: dict[str, dict[str, int]]
    facts: int | None = None
    """`facts` of the root provider at planning time: the claim fails if they have changed since."""
    providers: dict[str, str] = {}
    """The provider of each numbered group, by its suffix."""


class Plan(msgspec.Struct, frozen=True):
    """The best hosts, best first, and the diagnosis. No candidates: no valid host."""

    candidates: tuple[Candidate, ...]
    diagnosis: Diagnosis

    @property
    def uuids(self) -> tuple[str, ...]:
        return tuple(candidate.uuid for candidate in self.candidates)


async def claim_first(
    tx: Transaction,
    candidates: Sequence[Candidate],
    consumer: Consumer,
    *,
    accepts: Callable[[Candidate], bool] | None = None,
) -> Candidate | None:
    """Claim the first candidate that is unchanged and still has enough free resources; None if there is none.

    Waits for locks on the best host only, and skips alternates with locked providers. A waiting transaction thus holds
    no other host, and it locks providers in the order of their ids, so claims cannot deadlock. `accepts` rejects
    candidates by what only the transaction knows. A consumer that already has the allocations of a candidate gets it.
    """
    wait = True
    for candidate in candidates:
        if accepts is not None and not accepts(candidate):
            continue
        try:
            outcome = await try_claim(
                tx, consumer, candidate.allocations, wait=wait, expected=_snapshot_version(candidate)
            )
        except ConsumerHasAllocations as other:
            return _candidate_with(candidates, other)
        if outcome is ClaimOutcome.CLAIMED:
            return candidate
        wait = False
    return None


def _snapshot_version(candidate: Candidate) -> SnapshotVersion | None:
    return None if candidate.facts is None else SnapshotVersion(candidate.uuid, candidate.facts)


def _candidate_with(candidates: Sequence[Candidate], other: ConsumerHasAllocations) -> Candidate:
    for candidate in candidates:
        if _without_zeros(candidate.allocations) == other.held:
            return candidate
    raise other


def _without_zeros(allocations: dict[str, dict[str, int]]) -> dict[str, dict[str, int]]:
    amounts = {uuid: {name: n for name, n in given.items() if n} for uuid, given in allocations.items()}
    return {uuid: given for uuid, given in amounts.items() if given}
