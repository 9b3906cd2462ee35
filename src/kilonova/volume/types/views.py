"""Views of volume types. Most extra specs are only shown to callers whom a policy rule allows."""

from __future__ import annotations

from kilonova.http import Context, Field, View, attribute
from kilonova.volume.api import api
from kilonova.volume.types.model import VolumeType
from kilonova.volume.types.schemas import IS_PUBLIC

SENSITIVE = "volume_extension:types_extra_specs:read_sensitive"
_SPECS = "volume_extension:access_types_extra_specs"
_ACCESS = "volume_extension:volume_type_access:type_access"
# Users need these to choose a type. The others describe the back ends of the operator.
_FOR_USERS = frozenset({"multiattach", "replication_enabled", "RESKEY:availability_zones"})
_TEXT = {"type": "string"}
_NULLABLE = {"type": ["string", "null"]}
_BOOLEAN = {"type": "boolean"}


def specs(volume_type: VolumeType, ctx: Context) -> dict[str, str | None]:
    """The extra specs that the caller may see."""
    found = volume_type.extra_specs
    return found if ctx.may(SENSITIVE) else {key: value for key, value in found.items() if key in _FOR_USERS}


_CHANGED = {
    "id": attribute("id", _TEXT),
    "name": attribute("name", _TEXT),
    "is_public": attribute("is_public", _BOOLEAN),
    "description": attribute("description", _NULLABLE),
    "extra_specs": Field(specs, {"type": "object"}, _SPECS),
}
_NEW = {**_CHANGED, IS_PUBLIC: attribute("is_public", _BOOLEAN, _ACCESS)}

api.view(View("changed volume type", _CHANGED))
api.view(View("new volume type", _NEW))
# QoS specs are not supported.
api.view(
    View(
        "volume type",
        {
            **_NEW,
            "qos_specs_id": Field(
                lambda volume_type, ctx: None, {"type": "null"}, "volume_extension:access_types_qos_specs_id"
            ),
        },
    )
)
api.view(
    View("default type", {"project_id": attribute("project_id", _TEXT), "volume_type_id": attribute("type_id", _TEXT)})
)
