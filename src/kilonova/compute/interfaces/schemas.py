"""Bodies of interfaces."""

from __future__ import annotations

from kilonova.compute.servers.schemas import DEVICE_TAG
from kilonova.http.pieces import UUID, Schema, closed

ADDRESS: Schema = closed({"ip_address": {"type": "string", "format": "ip"}}, ["ip_address"])
CREATE: Schema = closed(
    {
        "interfaceAttachment": closed(
            {
                "net_id": UUID,
                "port_id": UUID,
                "fixed_ips": {"type": "array", "minItems": 1, "maxItems": 1, "items": ADDRESS},
                "tag": DEVICE_TAG,
            }
        )
    }
)
