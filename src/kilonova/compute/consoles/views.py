"""Views of consoles."""

from __future__ import annotations

from kilonova.compute.api import api
from kilonova.compute.servers.views import NULLABLE, TEXT
from kilonova.http import Field, View, col

NUMBER = {"type": ["integer", "null"]}

api.view(View("console", {"type": col("type", TEXT), "url": col("url", TEXT)}))
api.view(
    View("remote console", {"protocol": col("protocol", TEXT), "type": col("type", TEXT), "url": col("url", TEXT)})
)
api.view(
    View(
        "console access",
        {
            "instance_uuid": col("server_id", TEXT),
            "host": col("host", TEXT),
            "port": col("port", NUMBER),
            # Only for displays other than VNC, which hosts do not have.
            "tls_port": Field(lambda row, ctx: None, NUMBER),
            "internal_access_path": Field(lambda row, ctx: None, NULLABLE),
        },
    )
)
