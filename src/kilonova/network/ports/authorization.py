"""Policy checks of port requests that need more than a rule per attribute."""

from __future__ import annotations

from typing import Any

from kilonova.http import Context
from kilonova.http.errors import Forbidden
from kilonova.network.authorization import sees_all
from kilonova.network.errors import conflict
from kilonova.network.ports.fixed_ips import FixedIp, matches
from kilonova.network.ports.model import SERVICE_OWNERS
from kilonova.store import Row


def authorize_fixed_ips(
    ctx: Context, rule: str, body: dict[str, Any], target: dict[str, Any], held: list[FixedIp] | None = None
) -> None:
    """Check the permission to choose addresses. Addresses that the port already has need none."""
    requests = [request for request in body.get("fixed_ips") or [] if not _holds(held or [], request)]
    for key in sorted({key for request in requests for key in request}):
        ctx.authorize(f"{rule}:fixed_ips:{key}", target)


def _holds(held: list[FixedIp], request: dict[str, Any]) -> bool:
    return "ip_address" in request and any(matches(fixed, request) for fixed in held)


def authorize_device(ctx: Context, body: dict[str, Any], network: Row | None, row: Row | None = None) -> None:
    """Protect the ports of routers and floating IPs, which the service recognises by their device."""
    if sees_all(ctx, "update_port"):
        return
    owner = body.get("device_owner", "")
    is_owner = network is not None and network["project_id"] == ctx.token.project_id
    if owner in SERVICE_OWNERS or (owner.startswith("network:") and not is_owner):
        raise Forbidden(f"Only the network service may set the device owner {owner}.")
    if row is not None and row["device_owner"] in SERVICE_OWNERS and body.keys() & {"device_id", "device_owner"}:
        raise conflict(
            "ServicePortInUse",
            f"Port {row['id']} cannot be moved to another device: has device owner {row['device_owner']}.",
        )
