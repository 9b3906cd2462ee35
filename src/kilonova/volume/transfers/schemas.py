"""Bodies of the transfer routes."""

from __future__ import annotations

from kilonova.http.pieces import BOOLEAN, UUID, Schema, closed

NAME: Schema = {"type": ["string", "null"], "maxLength": 255}
CREATE = closed(
    {"transfer": closed({"volume_id": UUID, "name": NAME, "no_snapshots": BOOLEAN}, ["volume_id"])}, ["transfer"]
)
# The older routes know no snapshots.
CREATE_OLD = closed({"transfer": closed({"volume_id": UUID, "name": NAME}, ["volume_id"])}, ["transfer"])
ACCEPT = closed(
    {"accept": closed({"auth_key": {"type": "string", "minLength": 1, "maxLength": 255}}, ["auth_key"])}, ["accept"]
)
