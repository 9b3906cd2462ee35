"""How an external event is shown to whoever told of it: as it was, and what came of it."""

from __future__ import annotations

from kilonova.compute.api import api
from kilonova.compute.external_events.schemas import STATUSES
from kilonova.compute.servers.views import TEXT
from kilonova.http import Field, View, col
from kilonova.http.views import OMIT

api.view(
    View(
        "external event",
        {
            "name": col("name", TEXT),
            "server_uuid": col("server_uuid", TEXT),
            "status": col("status", {"enum": list(STATUSES)}),
            "tag": Field(lambda event, ctx: event.get("tag", OMIT), TEXT, optional=True),
            "code": col("code", {"enum": [200, 400, 404, 422]}),
        },
    )
)
