"""Query keys of the hypervisor routes."""

from __future__ import annotations

from kilonova.compute.schemas import BOOLEAN, Schema
from kilonova.http.pagination import LIMIT, MARKER

PATTERN: Schema = {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[a-zA-Z0-9-._]*$"}
WITH_SERVERS: dict[str, Schema] = {"with_servers": BOOLEAN}
LIST: dict[str, Schema] = {
    "limit": LIMIT,
    "marker": MARKER,
    "hypervisor_hostname_pattern": PATTERN,
    **WITH_SERVERS,
}
