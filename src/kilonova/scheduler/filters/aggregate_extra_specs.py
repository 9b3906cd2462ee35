"""The metadata of one of a host's aggregates must meet each extra spec with scope `aggregate_instance_extra_specs:`.

An extra spec without a scope counts only if some aggregate has its key, because its meaning is otherwise unknown.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kilonova.scheduler.extra_spec_rules import describe_rule, satisfies
from kilonova.scheduler.filters import Reason, Reasons, all_of
from kilonova.scheduler.request import Request
from kilonova.scheduler.requirements import UNSCOPED_SPECS

if TYPE_CHECKING:
    from kilonova.scheduler.snapshot import Host, Hosts, Mask

SCOPE = "aggregate_instance_extra_specs"


def _rules(request: Request) -> list[tuple[str, str, bool]]:
    """Key and rule, and whether it is scoped."""
    found = []
    for spec, rule in request.extra_specs.items():
        scope, colon, key = spec.partition(":")
        if not colon and spec not in UNSCOPED_SPECS:
            found.append((spec, rule, False))
        elif scope == SCOPE:
            found.append((key, rule, True))
    return found


def _fits(key: str, rule: str, scoped: bool, hosts: Hosts) -> Mask:
    values = hosts.aggregates.having(key)
    if not values and not scoped:
        return hosts.everywhere

    def make() -> Mask:
        return hosts.aggregates.union(number for number, value in values.items() if _meets(value, rule))

    return hosts.aggregates.keep((SCOPE, key, rule), make)


def _meets(value: str, rule: str) -> bool:
    """An aggregate may list several values."""
    return any(satisfies(part.strip(), rule) for part in value.split(","))


def _have(key: str, host: Host) -> str:
    values = [metadata[key] for metadata in host.aggregates if key in metadata]
    return ", ".join(f"{key}={value}" for value in values) or f"no aggregate with {key}"


def _reason(key: str, rule: str, scoped: bool) -> Reason:
    return Reason(
        "not in an aggregate with {need}",
        need=lambda _: describe_rule(key, rule),
        have=lambda _, host: _have(key, host),
        applies=lambda _, hosts: ~_fits(key, rule, scoped, hosts),
    )


reason = Reasons(lambda request: [_reason(*rule) for rule in _rules(request)])


def passes(request: Request, hosts: Hosts) -> Mask:
    return all_of(hosts, (_fits(*rule, hosts) for rule in _rules(request)))
