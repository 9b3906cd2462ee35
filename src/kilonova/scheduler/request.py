"""The request to the scheduler: what a server needs of a host."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from kilonova.placement.candidates.model import UNNUMBERED, RequestGroup, ResourceRequest


class GroupRule(msgspec.Struct, frozen=True, kw_only=True):
    """Policy of the request's server group, and how many of its other members each host has."""

    id: str
    policy: str
    max_per_host: int = 1
    members: Mapping[str, int] = {}


class Request(msgspec.Struct, frozen=True, kw_only=True):
    resources: dict[str, int]
    """The unnumbered group: each class may come from a different provider of the host, or from a sharing provider."""
    required_traits: frozenset[str] = frozenset()
    forbidden_traits: frozenset[str] = frozenset()
    groups: Mapping[str, RequestGroup] = {}
    """Numbered groups by suffix: one provider allocates all resources of a group."""
    isolate: bool = False
    """Whether numbered groups must come from different providers."""
    same_subtree: tuple[frozenset[str], ...] = ()
    zone: str | None = None
    """The pinned availability zone."""
    host: str | None = None
    hypervisor_hostname: str | None = None
    hypervisor_uuid: str | None = None
    forced: bool = False
    """Whether the named host bypasses all filters without `even_if_forced`."""
    excluded_hosts: frozenset[str] = frozenset()
    same_hosts: frozenset[str] | None = None
    """The hosts of the servers in the hint `same_host`; None without the hint."""
    different_hosts: frozenset[str] = frozenset()
    """The hosts of the servers in the hint `different_host`."""
    group: GroupRule | None = None
    project_id: str | None = None
    extra_specs: Mapping[str, str] = {}
    image_id: str | None = None
    image_properties: Mapping[str, str] = {}
    hints: Mapping[str, object] = {}

    @property
    def amounts(self) -> dict[str, int]:
        """The resources without zero amounts."""
        return {name: amount for name, amount in self.resources.items() if amount}

    @property
    def amounts_per_provider(self) -> list[tuple[str, int]]:
        """Amounts that a single provider must have: each resource class of each group."""
        groups = (self.amounts, *(group.resources for group in self.groups.values()))
        return list(dict.fromkeys((name, amount) for group in groups for name, amount in group.items() if amount))

    @property
    def required_trait_sets(self) -> list[frozenset[str]]:
        """Trait sets of which at least one provider must have at least one trait."""
        groups = (any_of for group in self.groups.values() for any_of in group.required)
        return list(dict.fromkeys((*(frozenset((trait,)) for trait in sorted(self.required_traits)), *groups)))

    @property
    def resource_request(self) -> ResourceRequest:
        """The request in the form that placement takes."""
        unnumbered = RequestGroup(
            resources=self.amounts,
            required=tuple(frozenset((trait,)) for trait in sorted(self.required_traits)),
            forbidden=self.forbidden_traits,
        )
        groups = {UNNUMBERED: unnumbered, **self.groups}
        return ResourceRequest(groups=groups, isolate=self.isolate, same_subtree=self.same_subtree)
