"""Placement: who has how much of what, and who uses it. Its REST API stands on these same functions.

facts, shapes, providers   what hosts tell of themselves, how the database differs, and the writing of it
mirror                     what compute says of hosts: aggregates, ratios, who is disabled or gone
claims                     takes room for a server, all or nothing, and gives it back
exchanging                 lets two consumers change places, at the end of a server's move
replacing                  the same for clients of the API, who replace what consumers hold
changes                    the sequence by which schedulers learn of every such write
allocations, names         what is used, summed up; standard and custom classes and traits
candidates/                in which ways providers can give what is asked for
rest/, versions/           the REST API: a file for each noun, a file for each microversion
api, build, errors         where it is mounted, how it is put together, what it says in errors
"""

from __future__ import annotations

from kilonova.placement.allocations import allocations_of, usages
from kilonova.placement.changes import hosts_changed
from kilonova.placement.claims import Consumer, HoldsOther, Outcome, Raced, Seen, claim, release, try_claim
from kilonova.placement.exchanging import exchange
from kilonova.placement.providers import Inventory, ProviderFacts, sync

__all__ = [
    "Consumer",
    "HoldsOther",
    "Inventory",
    "Outcome",
    "ProviderFacts",
    "Raced",
    "Seen",
    "allocations_of",
    "claim",
    "exchange",
    "hosts_changed",
    "release",
    "sync",
    "try_claim",
    "usages",
]
