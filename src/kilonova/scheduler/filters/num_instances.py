"""A host has at most `max_instances_per_host` servers: the lowest value of its aggregates, or the setting."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kilonova.scheduler.filters import Reason
from kilonova.scheduler.request import Request

if TYPE_CHECKING:
    from kilonova.scheduler.arrays import Numbers
    from kilonova.scheduler.snapshot import Host, Hosts, Mask

KEY = "max_instances_per_host"


def _limit(hosts: Hosts) -> float | Numbers:
    return hosts.aggregates.numbers_or_default(KEY, hosts.settings.max_instances_per_host)


def room(hosts: Hosts) -> Numbers:
    import numpy as np

    return np.subtract(_limit(hosts), hosts.loads.servers, dtype=np.float64)


def _have(_: Request, host: Host) -> str:
    import numpy as np

    limit = np.broadcast_to(_limit(host.hosts), host.hosts.size)[host.row]
    return f"{host.hosts.loads.servers[host.row]} servers of at most {limit:.0f}"


reason = Reason("have no room for another server", need=lambda _: "room for one more server", have=_have)

reads = ("servers",)


def passes(request: Request, hosts: Hosts) -> Mask:
    mask: Mask = hosts.loads.servers < _limit(hosts)
    return mask
