"""Chooses from which providers of a host a request is allocated.

The columns only rule hosts out. For hosts with several providers this search decides.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from itertools import islice

from kilonova.placement.candidates.explain import find_unmet_requirement
from kilonova.placement.candidates.model import AllocationRequest, Provider, ResourceRequest
from kilonova.placement.candidates.search import allocation_requests
from kilonova.scheduler.explain import resource_classes
from kilonova.scheduler.filters.capacity import format_amount
from kilonova.scheduler.request import Request
from kilonova.scheduler.snapshot import Hosts

Allocations = dict[str, dict[str, int]]

# How many allocation requests of a host are compared.
_COMPARED = 8


class Allocator:
    """Allocates one request on one host after the other."""

    def __init__(self, request: Request, hosts: Hosts) -> None:
        self._request = request
        self._hosts = hosts
        self._amounts = request.amounts
        self._simple = not request.groups

    @property
    def columns_suffice(self) -> bool:
        """Whether the columns describe every host completely, so that no search is needed."""
        return self._simple and self._hosts.all_single_provider

    def allocate(self, row: int) -> AllocationRequest | None:
        """The allocations to claim on a host, and which providers serve which group; None if it cannot take them."""
        if self._simple and self._hosts.has_single_provider(row):
            return self.allocate_from_root(row)
        return best_allocations(self._resource_request, self._classes, *self._hosts.providers_of(row, self._classes))

    def allocate_from_root(self, row: int) -> AllocationRequest:
        root = self._hosts.uuids[row]
        return AllocationRequest(root, {root: self._amounts}, {})

    def explain(self, row: int) -> str:
        """Why a host cannot take the request."""
        return (
            find_unmet_requirement(self._resource_request, *self._hosts.providers_of(row, self._classes))
            or "it would fit now"
        )

    def describe_request(self) -> str:
        """`2 VCPU, 512 MB memory, group 1: 1 VGPU`."""
        groups = [
            ("", self._amounts),
            *((f"group {name}: ", one.resources) for name, one in self._request.groups.items()),
        ]
        return ", ".join(
            prefix + ", ".join(format_amount(name, number) for name, number in resources.items())
            for prefix, resources in groups
        )

    @cached_property
    def _resource_request(self) -> ResourceRequest:
        return self._request.resource_request

    @cached_property
    def _classes(self) -> list[str]:
        return resource_classes(self._request)


def best_allocations(
    request: ResourceRequest, classes: Iterable[str], tree: list[Provider], sharing: list[Provider]
) -> AllocationRequest | None:
    """Allocations from the providers of a host and those that share with it; None if there are none."""
    # Providers with the least free space come first, so that others stay free for large requests.
    found = allocation_requests(request, _fullest_first(tree, classes), _fullest_first(sharing, classes))
    compared = list(islice(found, _COMPARED))
    if len(compared) < 2:
        return compared[0] if compared else None
    own = {provider.uuid for provider in tree}
    return min(compared, key=lambda one: (_count_shared(one.allocations, own), len(one.allocations)))


def _fullest_first(providers: list[Provider], classes: Iterable[str]) -> list[Provider]:
    return providers if len(providers) < 2 else sorted(providers, key=lambda one: _free_ratio(one, classes))


def _count_shared(allocations: Allocations, own: set[str]) -> int:
    """How many resource classes come from sharing providers."""
    return sum(len(amounts) for uuid, amounts in allocations.items() if uuid not in own)


def _free_ratio(provider: Provider, classes: Iterable[str]) -> float:
    """The free fraction of each resource class, summed."""
    usages = [usage for name in classes if (usage := provider.inventories.get(name)) is not None and usage.capacity > 0]
    return sum((usage.capacity - usage.used) / usage.capacity for usage in usages)
