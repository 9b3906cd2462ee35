"""How a binding is shown."""

from __future__ import annotations

from typing import Any

import orjson

from kilonova.network.bindings.model import Binding
from kilonova.network.ports.model import vif_type
from kilonova.network.ports.view import details_of


def view(binding: Binding) -> dict[str, Any]:
    kind = vif_type({"host_id": binding.host, "vnic_type": binding.vnic_type})
    return {
        "host": binding.host,
        "status": "ACTIVE" if binding.active else "INACTIVE",
        "vif_type": kind,
        "vif_details": details_of(kind),
        "vnic_type": binding.vnic_type,
        "profile": orjson.loads(binding.profile),
    }
