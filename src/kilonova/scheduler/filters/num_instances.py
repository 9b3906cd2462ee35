"""A host has at most `max_instances_per_host` servers, as configured or as its aggregates say; the least counts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kilonova.scheduler.filters import Reason
from kilonova.scheduler.request import Request

if TYPE_CHECKING:
    from kilonova.scheduler.snapshot import Host, Hosts, Mask
    from kilonova.scheduler.stock import Numbers

KEY = "max_instances_per_host"


def _most(hosts: Hosts) -> float | Numbers:
    return hosts.aggregates.numbers_or(KEY, hosts.settings.max_instances_per_host)


def room(hosts: Hosts) -> Numbers:
    import numpy as np

    return np.subtract(_most(hosts), hosts.loads.servers, dtype=np.float64)


def _have(_: Request, host: Host) -> str:
    import numpy as np

    most = np.broadcast_to(_most(host.hosts), host.hosts.size)[host.row]
    return f"{host.hosts.loads.servers[host.row]} servers of at most {most:.0f}"


reason = Reason("have no room for another server", need=lambda _: "room for one more server", have=_have)

reads = ("servers",)


def passes(request: Request, hosts: Hosts) -> Mask:
    mask: Mask = hosts.loads.servers < _most(hosts)
    return mask
