"""Extra specs under `aggregate_instance_extra_specs:` must be met by the metadata of one of a host's aggregates.

One without a scope counts too, but only if some aggregate speaks of it: otherwise any word in a flavor would be a wish.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kilonova.scheduler.filters import Reason, Reasons, all_of
from kilonova.scheduler.matching import in_words, satisfies
from kilonova.scheduler.request import Request
from kilonova.scheduler.specs import PLAIN

if TYPE_CHECKING:
    from kilonova.scheduler.snapshot import Host, Hosts, Mask

SCOPE = "aggregate_instance_extra_specs"


def _rules(request: Request) -> list[tuple[str, str, bool]]:
    """Key and rule, and whether it is scoped."""
    found = []
    for spec, rule in request.extra_specs.items():
        scope, colon, key = spec.partition(":")
        if not colon and spec not in PLAIN:
            found.append((spec, rule, False))
        elif scope == SCOPE:
            found.append((key, rule, True))
    return found


def _fits(key: str, rule: str, scoped: bool, hosts: Hosts) -> Mask:
    said = hosts.aggregates.having(key)
    if not said and not scoped:
        return hosts.everywhere

    def make() -> Mask:
        return hosts.aggregates.union(number for number, value in said.items() if _met(value, rule))

    return hosts.aggregates.keep((SCOPE, key, rule), make)


def _met(value: str, rule: str) -> bool:
    """An aggregate may list several values."""
    return any(satisfies(part.strip(), rule) for part in value.split(","))


def _have(key: str, host: Host) -> str:
    values = [metadata[key] for metadata in host.aggregates if key in metadata]
    return ", ".join(f"{key}={value}" for value in values) or f"no aggregate with {key}"


def _lack(key: str, rule: str, scoped: bool) -> Reason:
    return Reason(
        "not in an aggregate with {need}",
        need=lambda _: in_words(key, rule),
        have=lambda _, host: _have(key, host),
        applies=lambda _, hosts: ~_fits(key, rule, scoped, hosts),
    )


reason = Reasons(lambda request: [_lack(*rule) for rule in _rules(request)])


def passes(request: Request, hosts: Hosts) -> Mask:
    return all_of(hosts, (_fits(*rule, hosts) for rule in _rules(request)))
