"""Bodies of the trunk routes."""

from __future__ import annotations

from kilonova.http.schema import Schema
from kilonova.network.networks.model import MAX_VLAN_ID
from kilonova.network.schemas import BOOLEAN, TEXT, UUID, create_body, object_schema, update_body
from kilonova.network.trunks.model import VLAN

MAX_SUBPORTS = 1000
_CHANGEABLE: Schema = {"name": TEXT, "admin_state_up": BOOLEAN}


def _subports(properties: Schema, required: tuple[str, ...]) -> Schema:
    return {"type": "array", "items": object_schema(properties, required), "maxItems": MAX_SUBPORTS}


_SUBPORTS = _subports(
    {
        "port_id": UUID,
        "segmentation_type": {"enum": [VLAN]},
        "segmentation_id": {"type": "integer", "minimum": 1, "maximum": MAX_VLAN_ID},
    },
    ("port_id", "segmentation_id"),
)
CREATE = create_body("trunk", "trunks", {**_CHANGEABLE, "port_id": UUID, "sub_ports": _SUBPORTS}, ("port_id",))
UPDATE = update_body("trunk", _CHANGEABLE)
ADD_SUBPORTS = object_schema({"sub_ports": _SUBPORTS}, ("sub_ports",))
# Old clients repeat all fields of the subports.
REMOVE_SUBPORTS = object_schema(
    {"sub_ports": _subports({"port_id": UUID, "segmentation_type": {}, "segmentation_id": {}}, ("port_id",))},
    ("sub_ports",),
)
