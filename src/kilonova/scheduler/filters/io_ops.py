"""A host runs at most `max_io_ops_per_host` operations: the lowest value of its aggregates, or the setting."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kilonova.scheduler.filters import Reason
from kilonova.scheduler.request import Request

if TYPE_CHECKING:
    from kilonova.scheduler.snapshot import Hosts, Mask

KEY = "max_io_ops_per_host"

reason = Reason(
    "have too many operations running",
    need=lambda _: "room for one more operation",
    have=lambda _, host: f"{host.hosts.loads.operations.get(host.name, 0)} running",
)

reads = ("operations",)


def passes(request: Request, hosts: Hosts) -> Mask:
    if not hosts.loads.operations:
        return hosts.everywhere
    limit = hosts.aggregates.numbers_or_default(KEY, hosts.settings.max_io_ops_per_host)
    mask: Mask = hosts.loads.operations_column(hosts) < limit
    return mask
