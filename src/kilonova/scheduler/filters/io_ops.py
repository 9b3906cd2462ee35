"""A host runs at most `max_io_ops_per_host` operations, as configured or as its aggregates say; the least counts."""

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
    busy = hosts.loads.operations
    said = hosts.aggregates.numbers(KEY)
    usual = hosts.settings.max_io_ops_per_host
    if said is None:
        return ~hosts.named(host for host, number in busy.items() if number >= usual) if busy else hosts.everywhere
    import numpy as np

    mask: Mask = hosts.spread(hosts.loads.operations) < np.where(np.isnan(said), usual, said)
    return mask
