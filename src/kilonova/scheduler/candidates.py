"""What a plan is, and how a transaction takes one of its candidates."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from kilonova.placement import Consumer, HoldsOther, Outcome, Seen, try_claim
from kilonova.scheduler.explain import Diagnosis
from kilonova.store import Transaction


class Candidate(msgspec.Struct, frozen=True):
    """A hypervisor, its uuid also that of its root provider in placement, and what to claim from which provider."""

    uuid: str
    host: str
    hypervisor_hostname: str
    allocations: dict[str, dict[str, int]]
    facts: int | None = None
    """What the provider's `facts` were: a claim is refused where they are newer, for the plan knew another host."""


class Plan(msgspec.Struct, frozen=True):
    """The best hosts, best first, and why these. No candidates: no valid host."""

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
    """Claim the first candidate that is as it was and still has room; None if there is none.

    Awaits nothing but the transaction. It waits its turn for the best host, but passes over an alternate that others
    are claiming from: whoever waits is at its first host, and takes that one's providers in the order of their ids,
    so trying hosts in different orders cannot deadlock. `accepts` says which candidates still obey what the
    transaction knows and the plan did not. A consumer that already holds what a candidate asks for gets that one.
    """
    wait = True
    for candidate in candidates:
        if accepts is not None and not accepts(candidate):
            continue
        try:
            outcome = await try_claim(tx, consumer, candidate.allocations, wait=wait, seen=_seen(candidate))
        except HoldsOther as other:
            return _holder(candidates, other)
        if outcome is Outcome.CLAIMED:
            return candidate
        wait = False
    return None


def _seen(candidate: Candidate) -> Seen | None:
    return None if candidate.facts is None else Seen(candidate.uuid, candidate.facts)


def _holder(candidates: Sequence[Candidate], other: HoldsOther) -> Candidate:
    for candidate in candidates:
        if _without_zeros(candidate.allocations) == other.held:
            return candidate
    raise other


def _without_zeros(allocations: dict[str, dict[str, int]]) -> dict[str, dict[str, int]]:
    amounts = {uuid: {name: n for name, n in given.items() if n} for uuid, given in allocations.items()}
    return {uuid: given for uuid, given in amounts.items() if given}
