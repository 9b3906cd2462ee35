"""What requests about bindings look like."""

from __future__ import annotations

from kilonova.http import multi
from kilonova.network.ports.schema import VNIC_TYPES
from kilonova.network.schema import SHOW_KEYS, Schema, resource

_CHANGEABLE: Schema = {"vnic_type": {"enum": list(VNIC_TYPES)}, "profile": {"type": ["object", "null"]}}
_HOST: Schema = {"type": "string", "minLength": 1, "maxLength": 255}

CREATE = resource({"binding": resource({"host": _HOST, **_CHANGEABLE}, ("host",))}, ("binding",))
UPDATE = resource({"binding": resource(_CHANGEABLE)}, ("binding",))
FILTERS = ("host", "vif_type", "vnic_type", "status")
LIST_KEYS = {**SHOW_KEYS, **{name: multi({"type": "string"}) for name in FILTERS}}
