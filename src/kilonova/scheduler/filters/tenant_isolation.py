"""Hosts of aggregates with `filter_tenant_id`, or a key with this prefix, take only servers of these projects."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from kilonova.scheduler.filters import Reason
from kilonova.scheduler.request import Request

if TYPE_CHECKING:
    from kilonova.scheduler.snapshot import Hosts, Mask

KEY = "filter_tenant_id"

# The text is visible to users, so it does not name the projects; `have` is only for administrators.
reason = Reason(
    "reserved for other projects",
    need=lambda request: f"a host for project {request.project_id}",
    have=lambda _, host: f"reserved for {', '.join(sorted(_projects(host.aggregates)))}",
)


def passes(request: Request, hosts: Hosts) -> Mask:
    aggregates = hosts.aggregates
    allowed = aggregates.keep(KEY, lambda: _by_project(hosts))
    if not allowed:
        return hosts.everywhere
    project = request.project_id if request.project_id in allowed else None

    def make() -> Mask:
        reserved = {number for numbers in allowed.values() for number in numbers}
        return ~aggregates.union(reserved) | aggregates.union(() if project is None else allowed[project])

    return aggregates.keep((KEY, project), make)


def reserved_hosts(request: Request, hosts: Hosts) -> Mask | None:
    """The hosts reserved for the project of the request; None if there are none."""
    numbers = hosts.aggregates.keep(KEY, lambda: _by_project(hosts)).get(request.project_id or "")
    return hosts.aggregates.union(numbers) if numbers else None


def reserved_projects(key: str, value: str) -> list[str]:
    """The projects that a metadata entry of an aggregate reserves its hosts for."""
    return [project.strip() for project in value.split(",")] if key.startswith(KEY) else []


def _by_project(hosts: Hosts) -> dict[str, set[int]]:
    """The aggregates reserved for each project."""
    found: dict[str, set[int]] = {}
    for key in hosts.aggregates.metadata_keys():
        if key.startswith(KEY):
            for number, value in hosts.aggregates.having(key).items():
                for project in reserved_projects(key, value):
                    found.setdefault(project, set()).add(number)
    return found


def _projects(aggregates: Iterable[Mapping[str, str]]) -> set[str]:
    return {
        project
        for metadata in aggregates
        for key, value in metadata.items()
        for project in reserved_projects(key, value)
    }
