"""What is asked of the scheduler."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from kilonova.placement.candidates.model import UNNUMBERED, Ask, Group


class GroupRule(msgspec.Struct, frozen=True, kw_only=True):
    """The server group of a request: its policy, and how many of its other members each host has."""

    id: str
    policy: str
    max_per_host: int = 1
    members: Mapping[str, int] = {}


class Request(msgspec.Struct, frozen=True, kw_only=True):
    resources: dict[str, int]
    """Of the unnumbered group: each class may come from another provider of the host's tree, or from a sharing one."""
    required_traits: frozenset[str] = frozenset()
    forbidden_traits: frozenset[str] = frozenset()
    groups: Mapping[str, Group] = {}
    """Numbered groups by their suffix: each is met by one provider."""
    isolate: bool = False
    """Whether numbered groups must be met by different providers."""
    same_subtree: tuple[frozenset[str], ...] = ()
    zone: str | None = None
    """The pin: only hosts of this availability zone."""
    host: str | None = None
    hypervisor_hostname: str | None = None
    hypervisor_uuid: str | None = None
    forced: bool = False
    """Whether the named host is taken past every filter that does not say `even_if_forced`."""
    excluded_hosts: frozenset[str] = frozenset()
    same_hosts: frozenset[str] | None = None
    """Where the servers of the hint `same_host` are; None without the hint."""
    different_hosts: frozenset[str] = frozenset()
    """Where the servers of the hint `different_host` are."""
    group: GroupRule | None = None
    project_id: str | None = None
    extra_specs: Mapping[str, str] = {}
    image_id: str | None = None
    image_properties: Mapping[str, str] = {}
    hints: Mapping[str, object] = {}

    @property
    def amounts(self) -> dict[str, int]:
        """What really has to be there: a flavor without disk asks for no disk."""
        return {name: amount for name, amount in self.resources.items() if amount}

    @property
    def portions(self) -> list[tuple[str, int]]:
        """What some one provider has to give at once: each class, in each group that asks for it."""
        groups = (self.amounts, *(group.resources for group in self.groups.values()))
        return list(dict.fromkeys((name, amount) for group in groups for name, amount in group.items() if amount))

    @property
    def required_somewhere(self) -> list[frozenset[str]]:
        """The traits that some provider or other must have; of each set one is enough."""
        groups = (any_of for group in self.groups.values() for any_of in group.required)
        return list(dict.fromkeys((*(frozenset((trait,)) for trait in sorted(self.required_traits)), *groups)))

    @property
    def ask(self) -> Ask:
        """The same in the words of placement."""
        unnumbered = Group(
            resources=self.amounts,
            required=tuple(frozenset((trait,)) for trait in sorted(self.required_traits)),
            forbidden=self.forbidden_traits,
        )
        groups = {UNNUMBERED: unnumbered, **self.groups}
        return Ask(groups=groups, isolate=self.isolate, same_subtree=self.same_subtree)
