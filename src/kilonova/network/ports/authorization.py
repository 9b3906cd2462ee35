"""Policy checks of port requests that need more than a rule per attribute."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kilonova.http import Context
from kilonova.http.errors import Forbidden
from kilonova.network.authorization import sees_all
from kilonova.network.errors import conflict
from kilonova.network.networks.model import Network
from kilonova.network.ports.fixed_ips import FixedIp, FixedIpRequest
from kilonova.network.ports.model import SERVICE_OWNERS, Port


def authorize_fixed_ips(
    ctx: Context,
    rule: str,
    requests: Sequence[FixedIpRequest],
    target: Mapping[str, object],
    held: Sequence[FixedIp] = (),
) -> None:
    """Check the permission to choose addresses. Addresses that the port already has need none."""
    requests = [request for request in requests if not _holds(held, request)]
    if any(request.ip_address is not None for request in requests):
        ctx.authorize(f"{rule}:fixed_ips:ip_address", target)
    if any(request.subnet_id is not None for request in requests):
        ctx.authorize(f"{rule}:fixed_ips:subnet_id", target)


def _holds(held: Sequence[FixedIp], request: FixedIpRequest) -> bool:
    return request.ip_address is not None and any(request.matches(fixed) for fixed in held)


def authorize_device(ctx: Context, body: Mapping[str, str], network: Network | None, port: Port | None = None) -> None:
    """Protect the ports of routers and floating IPs, which the service recognises by their device."""
    if sees_all(ctx, "update_port"):
        return
    owner = body.get("device_owner", "")
    is_owner = network is not None and network.project_id == ctx.token.project_id
    if owner in SERVICE_OWNERS or (owner.startswith("network:") and not is_owner):
        raise Forbidden(f"Only the network service may set the device owner {owner}.")
    if port is not None and port.device_owner in SERVICE_OWNERS and body.keys() & {"device_id", "device_owner"}:
        raise conflict(
            "ServicePortInUse",
            f"Port {port.id} cannot be moved to another device: has device owner {port.device_owner}.",
        )
