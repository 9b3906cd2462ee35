"""A host must have every required trait and none of the forbidden ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kilonova.scheduler.filters import Reason, Reasons
from kilonova.scheduler.request import Request

if TYPE_CHECKING:
    from kilonova.scheduler.snapshot import Hosts, Mask


def _missing_reason(any_of: frozenset[str]) -> Reason:
    return Reason(
        "lack trait {need}",
        need=lambda _: " or ".join(sorted(any_of)),
        have=lambda _, host: "not this trait",
        applies=lambda _, hosts: ~_has(hosts, any_of),
    )


def _has(hosts: Hosts, any_of: frozenset[str]) -> Mask:
    first, *others = sorted(any_of)
    mask = hosts.has_trait(first)
    for trait in others:
        mask = mask | hosts.has_trait(trait)
    return mask


def _forbidden_reason(trait: str) -> Reason:
    return Reason(
        "have forbidden trait " + trait,
        need=lambda _: f"not {trait}",
        have=lambda _, host: trait,
        applies=lambda _, hosts: hosts.all_providers_have_trait(trait),
    )


reason = Reasons(
    lambda request: [
        *(_missing_reason(any_of) for any_of in request.required_trait_sets),
        *(_forbidden_reason(trait) for trait in sorted(request.forbidden_traits)),
    ]
)

even_if_forced = True
on_rebuild = True


def passes(request: Request, hosts: Hosts) -> Mask:
    mask = hosts.everywhere
    for any_of in request.required_trait_sets:
        mask = mask & _has(hosts, any_of)
    for trait in request.forbidden_traits:
        mask = mask & ~hosts.all_providers_have_trait(trait)
    return mask
