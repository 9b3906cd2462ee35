"""How networks were shown when compute kept them. The network service describes them by subnets, so little is left."""

from __future__ import annotations

from kilonova.compute.api import api
from kilonova.compute.servers.views import NULLABLE, TEXT
from kilonova.http import Field, View, col

_NOT_KNOWN = (
    *("bridge", "bridge_interface", "broadcast", "cidr", "cidr_v6", "created_at", "deleted", "deleted_at"),
    *("dhcp_server", "dhcp_start", "dns1", "dns2", "enable_dhcp", "gateway", "gateway_v6", "host", "injected"),
    *("mtu", "multi_host", "netmask", "netmask_v6", "priority", "project_id", "rxtx_base", "share_address"),
    *("updated_at", "vlan", "vpn_private_address", "vpn_public_address", "vpn_public_port"),
)
_NAMED = {"id": col("id", TEXT), "label": col("name", TEXT)}

api.view(
    View(
        "network of old",
        {**_NAMED, **{name: Field(lambda row, ctx: None, NULLABLE) for name in _NOT_KNOWN}},
    )
)
# A network may have many ranges of addresses or none; clients know this word for it.
api.view(View("network of project", {**_NAMED, "cidr": Field(lambda row, ctx: "None", TEXT)}))
