"""Views of server groups."""

from __future__ import annotations

from kilonova.compute.api import api
from kilonova.compute.server_groups.model import GroupWithMembers
from kilonova.http import Context, Field, View, attribute

TEXT = {"type": "string"}


def rules(shown: GroupWithMembers, ctx: Context) -> dict[str, int]:
    most = shown.group.max_server_per_host
    return {} if most is None else {"max_server_per_host": most}


def policies(shown: GroupWithMembers, ctx: Context) -> list[str]:
    return [shown.group.policy]


def _text(name: str) -> Field:
    return Field(lambda shown, ctx: getattr(shown.group, name), TEXT)


api.view(
    View(
        "server group",
        {
            "id": _text("id"),
            "name": _text("name"),
            "policy": _text("policy"),
            "rules": Field(rules, {"type": "object"}),
            "members": attribute("members", {"type": "array", "items": TEXT}),
            "project_id": _text("project_id"),
            "user_id": _text("user_id"),
        },
    )
)
