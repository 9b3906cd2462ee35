"""Views of key pairs."""

from __future__ import annotations

from kilonova import clock
from kilonova.compute.api import api
from kilonova.http import Field, View, col

TEXT = {"type": "string"}
KEY = {
    "name": col("name", TEXT),
    "type": col("type", {"type": "string", "enum": ["ssh", "x509"]}),
    "fingerprint": col("fingerprint", TEXT),
    "public_key": col("public_key", TEXT),
}

api.view(View("keypair", KEY))
api.view(View("new keypair", {**KEY, "user_id": col("user_id", TEXT)}))
api.view(
    View(
        "keypair detail",
        {
            **KEY,
            "user_id": col("user_id", TEXT),
            "id": col("id", {"type": "integer"}),
            "created_at": Field(lambda row, ctx: clock.iso_micro(row["created_at"]), TEXT),
            # A key pair is never updated, and deleted ones have no row.
            "updated_at": Field(lambda row, ctx: None, {"type": "null"}),
            "deleted": Field(lambda row, ctx: False, {"type": "boolean"}),
            "deleted_at": Field(lambda row, ctx: None, {"type": "null"}),
        },
    )
)
