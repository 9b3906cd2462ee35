"""The diagnosis of a plan: why each host was rejected or chosen, as data and as text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

import msgspec

from kilonova.scheduler.request import Request

if TYPE_CHECKING:
    from kilonova.scheduler.arrays import Integers
    from kilonova.scheduler.snapshot import Hosts

# A report is stored in several places, so it is limited. The attempt has all rejections.
_MAX_REPORT_LINES = 50

Free = Mapping[str, tuple[int, int]]
"""By requested resource class: the free amount and the capacity."""


class Cause(msgspec.Struct, frozen=True):
    """A reason and how many hosts it rejected, such as `28 not in zone az1`."""

    text: str
    hosts: int

    def __str__(self) -> str:
        return f"{self.hosts} {singular(self.text) if self.hosts == 1 else self.text}"


def singular(text: str) -> str:
    """The text of a reason for a single host: `lacks 2048 MB memory`."""
    verb, space, rest = text.partition(" ")
    return {"lack": "lacks", "have": "has"}.get(verb, verb) + space + rest


class FilterResult(msgspec.Struct, frozen=True):
    filter: str
    rejected: int
    left: int
    causes: tuple[Cause, ...] = ()


class Rejection(msgspec.Struct, frozen=True):
    """One rejected host: what was needed, and what it has."""

    host: str
    hypervisor_hostname: str
    hypervisor_uuid: str
    filter: str
    text: str
    need: str
    have: str
    free: Free = {}


class Weight(msgspec.Struct, frozen=True):
    """The weight of one candidate, and the part of each weigher."""

    host: str
    hypervisor_hostname: str
    total: float
    parts: dict[str, float]
    free: Free = {}


class Diagnosis(msgspec.Struct, frozen=True):
    """Hosts considered, survivors after each filter, need and have of rejected hosts, weights of the best.

    Members of a project may see the causes with their counts; hosts by name are for administrators.
    """

    hosts: int
    filters: tuple[FilterResult, ...]
    rejections: tuple[Rejection, ...] = ()
    weights: tuple[Weight, ...] = ()
    asked: Mapping[str, object] = {}
    """The request, without fields that were not given."""

    @property
    def left(self) -> int:
        return self.filters[-1].left if self.filters else self.hosts

    @property
    def causes(self) -> tuple[Cause, ...]:
        """Every reason with the number of hosts it rejected, the most frequent first."""
        counts: Counter[str] = Counter()
        for result in self.filters:
            for cause in result.causes:
                counts[cause.text] += cause.hosts
        return tuple(Cause(text, hosts) for text, hosts in counts.most_common())

    def sentence(self) -> str:
        """`No valid host was found: 40 hosts: 28 not in zone az1, 11 lack 2048 MB memory, 1 disabled`."""
        if not self.hosts:
            return "No valid host was found: there are no hosts"
        hosts = "1 host" if self.hosts == 1 else f"{self.hosts} hosts"
        causes = ", ".join(map(str, self.causes))
        if not self.left:
            return f"No valid host was found: {hosts}: {causes}"
        verb = "fits" if self.left == 1 else "fit"
        return f"{self.left} of {hosts} {verb}" + (f": {causes}" if causes else "")

    def rejection_report(self) -> str:
        """One line per rejected host, for administrators."""
        shown = self.rejections[:_MAX_REPORT_LINES]
        lines = [_report_line(one) for one in shown]
        more = sum(result.rejected for result in self.filters) - len(lines)
        return "\n".join([*lines, f"and {more} more"] if lines and more > 0 else lines)


def _report_line(one: Rejection) -> str:
    """`sim-001: lacks 8192 MB memory: 3584 MB memory free of 7680 MB memory`."""
    needed = "" if one.need in one.text else f" (needed {one.need})"
    return f"{one.host}: {singular(one.text)}{needed}: {one.have}"


def describe_request(request: Request) -> dict[str, object]:
    """The request for a diagnosis, without fields that were not given."""
    asked: dict[str, object] = {"resources": request.amounts}
    if request.groups:
        asked["groups"] = {suffix: dict(group.resources) for suffix, group in request.groups.items()}
    for name in ("zone", "host", "hypervisor_hostname", "hypervisor_uuid"):
        if (value := getattr(request, name)) is not None:
            asked[name] = value
    for name in ("required_traits", "forbidden_traits"):
        if traits := getattr(request, name):
            asked[name] = sorted(traits)
    if request.group is not None:
        asked["group"] = request.group.policy
    return asked


def resource_classes(request: Request) -> list[str]:
    groups = (group.resources for group in request.groups.values())
    return list(dict.fromkeys([*request.amounts, *(name for resources in groups for name in resources)]))


def free_amounts(hosts: Hosts, rows: Integers, classes: Iterable[str]) -> Iterator[Free]:
    """For each row, the free amount and the capacity of each class."""
    columns: list[list[tuple[str, tuple[int, int]]]] = []
    for name in classes:
        inventory = hosts.inventory(name)
        pairs = zip(inventory.free[rows].tolist(), inventory.capacity[rows].tolist(), strict=True)
        columns.append([(name, (max(0, int(free)), int(capacity))) for free, capacity in pairs])
    return map(dict, zip(*columns, strict=True)) if columns else iter([{} for _ in rows])
