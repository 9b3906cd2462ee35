"""Attributes of a host must meet each extra spec with scope `capabilities:`, such as `capabilities:hypervisor_type`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kilonova.scheduler.extra_spec_rules import describe_rule, satisfies
from kilonova.scheduler.filters import Reason, Reasons, all_of
from kilonova.scheduler.request import Request

if TYPE_CHECKING:
    from kilonova.scheduler.snapshot import Host, Hosts, Mask

SCOPE = "capabilities"


def _rules(request: Request) -> list[tuple[tuple[str, ...], str]]:
    """The path to each attribute and its rule."""
    found = []
    for spec, rule in request.extra_specs.items():
        scope, *path = spec.split(":")
        if scope == SCOPE and path:
            found.append((tuple(path), rule))
    return found


def _fits(path: tuple[str, ...], rule: str, hosts: Hosts) -> Mask:
    from kilonova.scheduler import host_attributes

    found = host_attributes.hosts_where(hosts, path, lambda value: satisfies(value, rule))
    return ~hosts.everywhere if found is None else found


def _have(path: tuple[str, ...], host: Host) -> str:
    from kilonova.scheduler import host_attributes

    return host_attributes.describe(host.hosts, host.row, path)


def _reason(path: tuple[str, ...], rule: str) -> Reason:
    return Reason(
        "lack capability {need}",
        need=lambda _: describe_rule(":".join(path), rule),
        have=lambda _, host: _have(path, host),
        applies=lambda _, hosts: ~_fits(path, rule, hosts),
    )


reason = Reasons(lambda request: [_reason(*rule) for rule in _rules(request)])


def passes(request: Request, hosts: Hosts) -> Mask:
    return all_of(hosts, (_fits(path, rule, hosts) for path, rule in _rules(request)))
