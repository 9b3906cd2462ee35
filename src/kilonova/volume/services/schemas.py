"""Bodies and query keys of the routes of services, hosts and pools."""

from __future__ import annotations

from kilonova.http.api import multi
from kilonova.http.parameter_types import BOOLEAN, STRING, Schema, closed_object

_NAME: Schema = {"type": "string", "minLength": 1, "maxLength": 255}
_REASON: Schema = {"type": "string", "minLength": 1, "maxLength": 255, "pattern": r"\S"}
_SERVICE: dict[str, Schema] = {"host": _NAME, "binary": _NAME, "service": _NAME}
NAMED: Schema = {
    **closed_object({**_SERVICE, "disabled_reason": {"type": ["string", "null"]}}, ["host"]),
    "anyOf": [{"required": ["binary"]}, {"required": ["service"]}],
}
NAMED_WITH_REASON: Schema = {
    **NAMED,
    **closed_object({**_SERVICE, "disabled_reason": _REASON}, ["host", "disabled_reason"]),
}
HOST: Schema = {"type": "object", "properties": {"host": _NAME}, "required": ["host"]}

LIST: dict[str, Schema] = {"host": STRING, "binary": STRING, "service": STRING, "*": multi(STRING)}
POOLS: dict[str, Schema] = {"detail": BOOLEAN, "name": STRING, "*": multi(STRING)}
