"""How quotas are shown: limits, or (in detail) limits beside what is used."""

from __future__ import annotations

from kilonova.compute.api import api
from kilonova.compute.quotas.schemas import LASTING
from kilonova.http import View, col

WHOLE = {"type": "integer"}
DETAIL = {
    "type": "object",
    "properties": {"limit": WHOLE, "in_use": WHOLE, "reserved": WHOLE},
    "required": ["limit", "in_use", "reserved"],
}
ID = {"id": col("id", {"type": "string"})}

api.view(View("new quota set", {resource: col(resource, WHOLE) for resource in LASTING}))
api.view(View("quota set", {**ID, **{resource: col(resource, WHOLE) for resource in LASTING}}))
api.view(View("quota detail", {**ID, **{resource: col(resource, DETAIL) for resource in LASTING}}))
api.view(View("new quota class", {resource: col(resource, WHOLE) for resource in LASTING}))
api.view(View("quota class", {**ID, **{resource: col(resource, WHOLE) for resource in LASTING}}))
