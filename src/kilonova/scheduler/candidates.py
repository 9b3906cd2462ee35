"""What a plan is, and how a transaction takes one of its candidates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from kilonova.placement import Consumer, HoldsOther, Outcome, try_claim
from kilonova.scheduler.explain import Diagnosis
from kilonova.store import Transaction


class Candidate(msgspec.Struct, frozen=True):
    """A hypervisor; its uuid is also that of its provider in placement."""

    uuid: str
    host: str
    hypervisor_hostname: str


class Plan(msgspec.Struct, frozen=True):
    """The best hosts, best first, and why these. No candidates: no valid host."""

    candidates: tuple[Candidate, ...]
    diagnosis: Diagnosis

    @property
    def uuids(self) -> tuple[str, ...]:
        return tuple(candidate.uuid for candidate in self.candidates)


class NoValidHost(Exception):
    """Its text is the one sentence that members of the project may read."""

    def __init__(self, diagnosis: Diagnosis) -> None:
        super().__init__(diagnosis.sentence())
        self.diagnosis = diagnosis


async def claim_first(
    tx: Transaction, candidates: Sequence[Candidate], consumer: Consumer, resources: Mapping[str, int]
) -> Candidate | None:
    """Claim from the first candidate that still has room; None if others were faster everywhere.

    Awaits nothing but the transaction. It waits its turn for the best host, but passes over an alternate that others
    are claiming from: whoever waits holds no other host, so trying them in different orders cannot deadlock.
    A consumer that already holds its claim on one of the candidates gets that one.
    """
    try:
        return await _claim_first(tx, candidates, consumer, resources)
    except HoldsOther as held:
        providers = {row["provider_uuid"] for row in held.held}
        holder = next((candidate for candidate in candidates if candidate.uuid in providers), None)
        if holder is None or await try_claim(tx, consumer, holder.uuid, resources) is not Outcome.CLAIMED:
            raise
        return holder


async def _claim_first(
    tx: Transaction, candidates: Sequence[Candidate], consumer: Consumer, resources: Mapping[str, int]
) -> Candidate | None:
    for number, candidate in enumerate(candidates):
        outcome = await try_claim(tx, consumer, candidate.uuid, resources, wait=number == 0)
        if outcome is Outcome.CLAIMED:
            return candidate
    return None
