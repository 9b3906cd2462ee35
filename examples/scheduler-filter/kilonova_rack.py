"""The hint `rack` names a rack; only hosts of an aggregate with `rack` of that value in its metadata are taken."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kilonova.scheduler.filters import Reason
from kilonova.scheduler.request import Request

if TYPE_CHECKING:
    from kilonova.scheduler.snapshot import Host, Hosts, Mask

KEY = "rack"


def _have(_: Request, host: Host) -> str:
    return ", ".join(metadata[KEY] for metadata in host.aggregates if KEY in metadata) or "no rack"


# `28 not in rack r7` in the sentence; `need` and `have` for the hosts that a diagnosis shows.
reason = Reason("not in rack {need}", need=lambda request: request.hints[KEY], have=_have)


def passes(request: Request, hosts: Hosts) -> Mask:
    wanted = request.hints.get(KEY)
    if wanted is None:
        return hosts.everywhere  # nothing to check: costs nothing and does not show
    aggregates = hosts.aggregates
    # Kept until an aggregate changes, so that a request costs a look-up however many hosts there are.
    return aggregates.keep(
        (KEY, wanted), lambda: aggregates.union(n for n, rack in aggregates.having(KEY).items() if rack == wanted)
    )
