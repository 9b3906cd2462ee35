"""Extra specs under `capabilities:` must be met by what a host is, such as `hypervisor_type` or `cpu_info:features`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kilonova.scheduler.filters import Reason, Reasons, all_of
from kilonova.scheduler.matching import in_words, satisfies
from kilonova.scheduler.request import Request

if TYPE_CHECKING:
    from kilonova.scheduler.snapshot import Host, Hosts, Mask

SCOPE = "capabilities"


def _rules(request: Request) -> list[tuple[tuple[str, ...], str]]:
    """The path to each fact and the rule for it."""
    found = []
    for spec, rule in request.extra_specs.items():
        scope, *path = spec.split(":")
        if scope == SCOPE and path:
            found.append((tuple(path), rule))
    return found


def _fits(path: tuple[str, ...], rule: str, hosts: Hosts) -> Mask:
    from kilonova.scheduler import facts

    found = facts.where(hosts, path, lambda value: satisfies(value, rule))
    return ~hosts.everywhere if found is None else found


def _have(path: tuple[str, ...], host: Host) -> str:
    from kilonova.scheduler import facts

    return facts.at(host.hosts, host.row, path)


def _lack(path: tuple[str, ...], rule: str) -> Reason:
    return Reason(
        "lack capability {need}",
        need=lambda _: in_words(":".join(path), rule),
        have=lambda _, host: _have(path, host),
        applies=lambda _, hosts: ~_fits(path, rule, hosts),
    )


reason = Reasons(lambda request: [_lack(*rule) for rule in _rules(request)])


def passes(request: Request, hosts: Hosts) -> Mask:
    return all_of(hosts, (_fits(path, rule, hosts) for path, rule in _rules(request)))
