"""`isolated_images` run only on `isolated_hosts`, and other images do not run there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kilonova.scheduler.filters import Reason, Reasons
from kilonova.scheduler.request import Request

if TYPE_CHECKING:
    from kilonova.scheduler.snapshot import Hosts, Mask

NOT_ISOLATED = Reason(
    "not set aside for this image",
    need=lambda request: f"a host set aside for image {request.image_id}",
    have=lambda _, host: host.name,
    applies=lambda request, hosts: (
        ~hosts.named(hosts.settings.isolated_hosts) if _is_isolated(request, hosts) else ~hosts.everywhere
    ),
)
ISOLATED = Reason(
    "set aside for other images",
    need=lambda _: "a host for all images",
    have=lambda _, host: host.name,
)

reason = Reasons(lambda _: (NOT_ISOLATED, ISOLATED))

on_rebuild = True


def _is_isolated(request: Request, hosts: Hosts) -> bool:
    return request.image_id in hosts.settings.isolated_images


def passes(request: Request, hosts: Hosts) -> Mask:
    settings = hosts.settings
    if _is_isolated(request, hosts):
        return hosts.named(settings.isolated_hosts)
    if settings.isolated_hosts and settings.restrict_isolated_hosts_to_isolated_images:
        return ~hosts.named(settings.isolated_hosts)
    return hosts.everywhere
