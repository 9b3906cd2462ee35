"""A host must have every required trait and none of the forbidden ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kilonova.scheduler.filters import Reason, Reasons
from kilonova.scheduler.request import Request

if TYPE_CHECKING:
    from kilonova.scheduler.snapshot import Hosts, Mask


def _lack(trait: str) -> Reason:
    return Reason(
        "lack trait {need}",
        need=lambda _: trait,
        have=lambda _, host: "not this trait",
        applies=lambda _, hosts: ~hosts.has_trait(trait),
    )


def _bear(trait: str) -> Reason:
    return Reason(
        "have forbidden trait " + trait,
        need=lambda _: f"not {trait}",
        have=lambda _, host: trait,
        applies=lambda _, hosts: hosts.has_trait(trait),
    )


reason = Reasons(
    lambda request: [
        *(_lack(trait) for trait in sorted(request.required_traits)),
        *(_bear(trait) for trait in sorted(request.forbidden_traits)),
    ]
)


def passes(request: Request, hosts: Hosts) -> Mask:
    mask = hosts.everywhere
    for trait in request.required_traits:
        mask = mask & hosts.has_trait(trait)
    for trait in request.forbidden_traits:
        mask = mask & ~hosts.has_trait(trait)
    return mask
