"""Query keys of the hypervisor routes."""

from __future__ import annotations

from kilonova.http.pagination import LIMIT, MARKER
from kilonova.http.pieces import BOOLEAN, Schema

PATTERN: Schema = {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[a-zA-Z0-9-._]*$"}
WITH_SERVERS: dict[str, Schema] = {"with_servers": BOOLEAN}
LIST: dict[str, Schema] = {
    "limit": LIMIT,
    "marker": MARKER,
    "hypervisor_hostname_pattern": PATTERN,
    **WITH_SERVERS,
}
