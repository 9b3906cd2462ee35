"""The view of a router."""

from __future__ import annotations

from msgspec import to_builtins

from kilonova.network import resources
from kilonova.network.ports.model import PortDetails
from kilonova.network.routers.model import Router


def view(router: Router, gateway: PortDetails | None) -> dict[str, object]:
    info = None
    if gateway is not None:
        info = {
            "network_id": gateway.port.network_id,
            "enable_snat": router.enable_snat,
            "external_fixed_ips": [fixed.view() for fixed in gateway.fixed_ips],
        }
    return {
        "id": router.id,
        "name": router.name,
        "status": router.status,
        "admin_state_up": router.admin_state_up,
        "external_gateway_info": info,
        "routes": to_builtins(router.routes),
        "distributed": False,
        "ha": False,
        "availability_zone_hints": router.availability_zone_hints,
        "availability_zones": [],
        **resources.standard_view(router),
    }
