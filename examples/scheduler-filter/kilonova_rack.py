"""The hint `rack` names a rack; only hosts of an aggregate with this value of `rack` in its metadata pass."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kilonova.scheduler.filters import Reason
from kilonova.scheduler.request import Request

if TYPE_CHECKING:
    from kilonova.scheduler.snapshot import Host, Hosts, Mask

KEY = "rack"


def _have(_: Request, host: Host) -> str:
    return ", ".join(metadata[KEY] for metadata in host.aggregates if KEY in metadata) or "no rack"


# Counted as `28 not in rack r7`. `need` and `have` are called for the hosts that a diagnosis lists.
reason = Reason("not in rack {need}", need=lambda request: request.hints[KEY], have=_have)


def passes(request: Request, hosts: Hosts) -> Mask:
    wanted = request.hints.get(KEY)
    if wanted is None:
        return hosts.everywhere  # nothing to check: costs nothing and is not listed
    aggregates = hosts.aggregates
    # Cached until an aggregate changes, so that a request needs one look-up for any number of hosts.
    return aggregates.keep(
        (KEY, wanted), lambda: aggregates.union(n for n, rack in aggregates.having(KEY).items() if rack == wanted)
    )
