"""How floating addresses are shown to compute's clients: by the names of pools and the servers that they lead to."""

from __future__ import annotations

from kilonova.compute.api import api
from kilonova.compute.servers.views import NULLABLE, TEXT
from kilonova.http import Field, View, col

api.view(View("floating pool", {"name": Field(lambda row, ctx: row["name"] or row["id"], TEXT)}))
api.view(
    View(
        "floating address of old",
        {
            "id": col("id", TEXT),
            "ip": col("floating_ip_address", TEXT),
            "fixed_ip": col("fixed_ip_address", NULLABLE),
            "pool": col("pool", TEXT),
            "instance_id": col("server_id", NULLABLE),
        },
    )
)
