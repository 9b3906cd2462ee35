"""What is asked of the scheduler."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class Request(msgspec.Struct, frozen=True, kw_only=True):
    resources: dict[str, int]
    zone: str | None = None
    """The pin: only hosts of this availability zone."""
    host: str | None = None
    hypervisor_hostname: str | None = None
    hypervisor_uuid: str | None = None
    excluded_hosts: frozenset[str] = frozenset()
    project_id: str | None = None
    required_traits: frozenset[str] = frozenset()
    forbidden_traits: frozenset[str] = frozenset()
    image_properties: Mapping[str, str] = {}
    hints: Mapping[str, object] = {}
    count: int = 1
    """How many servers share the plan. It names as many candidates, if there are, so that each has one to start at."""

    @property
    def amounts(self) -> dict[str, int]:
        """What really has to be there: a flavor without disk asks for no disk."""
        return {name: amount for name, amount in self.resources.items() if amount}
