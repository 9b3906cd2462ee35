"""Views of server groups."""

from __future__ import annotations

from typing import Any

from kilonova.compute.api import api
from kilonova.http import Context, Field, View, col

TEXT = {"type": "string"}


def rules(row: Any, ctx: Context) -> dict[str, int]:
    most = row["max_server_per_host"]
    return {} if most is None else {"max_server_per_host": most}


def policies(row: Any, ctx: Context) -> list[str]:
    return [row["policy"]]


api.view(
    View(
        "server group",
        {
            "id": col("id", TEXT),
            "name": col("name", TEXT),
            "policy": col("policy", TEXT),
            "rules": Field(rules, {"type": "object"}),
            "members": col("members", {"type": "array", "items": TEXT}),
            "project_id": col("project_id", TEXT),
            "user_id": col("user_id", TEXT),
        },
    )
)
