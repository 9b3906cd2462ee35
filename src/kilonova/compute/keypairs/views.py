"""Views of key pairs."""

from __future__ import annotations

from kilonova import clock
from kilonova.compute.api import api
from kilonova.http import Field, View, attribute

TEXT = {"type": "string"}
KEY = {
    "name": attribute("name", TEXT),
    "type": attribute("type", {"type": "string", "enum": ["ssh", "x509"]}),
    "fingerprint": attribute("fingerprint", TEXT),
    "public_key": attribute("public_key", TEXT),
}

api.view(View("keypair", KEY))
api.view(View("new keypair", {**KEY, "user_id": attribute("user_id", TEXT)}))
api.view(
    View(
        "keypair detail",
        {
            **KEY,
            "user_id": attribute("user_id", TEXT),
            "id": attribute("id", {"type": "integer"}),
            "created_at": Field(lambda key, ctx: clock.iso_micro(key.created_at), TEXT),
            # A key pair is never updated, and deleted ones have no row.
            "updated_at": Field(lambda key, ctx: None, {"type": "null"}),
            "deleted": Field(lambda key, ctx: False, {"type": "boolean"}),
            "deleted_at": Field(lambda key, ctx: None, {"type": "null"}),
        },
    )
)
