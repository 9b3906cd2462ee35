"""Placement: who has how much of what, and who uses it. Its REST API stands on these same functions."""

from __future__ import annotations

from kilonova.placement.allocations import allocations_of, project_usages, usages
from kilonova.placement.changes import hosts_changed
from kilonova.placement.claims import Consumer, HoldsOther, Outcome, Seen, claim, release, try_claim
from kilonova.placement.providers import Inventory, ProviderFacts, sync

__all__ = [
    "Consumer",
    "HoldsOther",
    "Inventory",
    "Outcome",
    "ProviderFacts",
    "Seen",
    "allocations_of",
    "claim",
    "hosts_changed",
    "project_usages",
    "release",
    "sync",
    "try_claim",
    "usages",
]
