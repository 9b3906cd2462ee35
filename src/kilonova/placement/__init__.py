"""Placement: resource providers, inventories, allocations and claims.

host_providers, providers  the providers that hosts report, and their synchronization into the database
reshape_plan               compares stored with reported providers; plans where allocations move
mirror                     mirrors compute's aggregates, allocation ratios and service state into placement
claims                     allocates resources for a consumer, all or nothing, and releases them
swap                       swaps the allocations of two consumers, at the end of a server's move
allocation_update          replaces the allocations of consumers, for the API
changes                    the change sequence, which tells schedulers which providers to read again
allocations, names         reads usages and allocations; standard and custom resource classes and traits
candidates/                the search for allocation candidates, shared by API and scheduler
rest/, versions/           the REST API: a file for each resource, a file for each microversion
api, build, errors         the API's definition, the assembly of its routes, its errors
"""

from __future__ import annotations

from kilonova.placement.allocations import get_allocations, get_usages
from kilonova.placement.changes import mark_hosts_changed
from kilonova.placement.claims import (
    ClaimOutcome,
    ConcurrentUpdate,
    Consumer,
    ConsumerHasAllocations,
    SnapshotVersion,
    claim,
    release,
    try_claim,
)
from kilonova.placement.host_providers import HostProviders, Inventory
from kilonova.placement.providers import sync_providers
from kilonova.placement.swap import swap_allocations

__all__ = [
    "ClaimOutcome",
    "ConcurrentUpdate",
    "Consumer",
    "ConsumerHasAllocations",
    "HostProviders",
    "Inventory",
    "SnapshotVersion",
    "claim",
    "get_allocations",
    "get_usages",
    "mark_hosts_changed",
    "release",
    "swap_allocations",
    "sync_providers",
    "try_claim",
]
